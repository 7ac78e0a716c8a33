// Numbers as text.
const DASH = "–";

function known(value) {
  return value !== null && value !== undefined;
}

// JSON has no word for these, so they are texts in the data.
function toNumber(value) {
  return value === "inf" ? Infinity : value === "-inf" ? -Infinity : value === "nan" ? NaN : value;
}

function formatNumber(value, digits = 3) {
  if (!known(value)) return DASH;
  value = toNumber(value);
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(digits - 1).replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
}

function formatShare(value) {
  if (!known(value)) return DASH;
  value = toNumber(value);
  if (!Number.isFinite(value)) return formatNumber(value);
  if (value === 0) return "0 %";
  if (value < 1e-4) return "< 0.01 %";
  return `${(100 * value).toFixed(value < 0.01 ? 2 : value < 0.9995 ? 1 : 0)} %`;
}

function formatDecibels(value) {
  return known(value) ? `${Number.isFinite(toNumber(value)) ? toNumber(value).toFixed(1) : formatNumber(value)} dB` : DASH;
}

function scaled(value, step, units, digits = 3) {
  let unit = 0;
  while (Math.abs(value) >= step && unit < units.length - 1) {
    value /= step;
    unit += 1;
  }
  return `${Number(value.toPrecision(digits))} ${units[unit]}`;
}

function formatBytes(value) {
  return scaled(value, 1000, ["B", "kB", "MB", "GB", "TB"]);
}

function formatFlops(value) {
  return scaled(value, 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"]);
}

function formatSeconds(value) {
  if (!known(value)) return DASH;
  return value >= 1 ? `${Number(value.toPrecision(3))} s` : scaled(value * 1e6, 1000, ["µs", "ms"]);
}

function powerOfTwo(exponent) {
  return `2${[...String(exponent)].map((letter) => letter === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[letter]).join("")}`;
}

function formatCount(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}
