"""One quantized copy of a tile: each thread takes runs of elements along the reduction, a block's width each.

A run is read in chunks of 16 values. The amax of a run is joined with those of the other rows of its block, gives the
scale, and the chunks are cast; codes go through shared memory so that they leave it as whole lines.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from steelyard.codegen import four_over_six, hadamard
from steelyard.codegen.formats import CANONICAL_NAN, encode_words
from steelyard.codegen.kernel import Parameter, Scope
from steelyard.codegen.memory import (
    Pointer,
    barrier,
    first_lane,
    shuffle_xor,
    warp_maximum,
)
from steelyard.codegen.rounding import RandomState, RandomTile, dither
from steelyard.codegen.scale_rules import (
    e8m0_encode_factor,
    e8m0_from_amax,
    nvfp4_block_byte,
    nvfp4_encode_factor,
    nvfp4_range,
    scale_from_amax,
)
from steelyard.codegen.sources import Place
from steelyard.codegen.tile import Tile
from steelyard.codegen.values import (
    Value,
    bitcast,
    compare_unsigned,
    constant,
    convert,
    i32,
    loop,
    maximum_unsigned,
    minimum_signed,
    select,
    signed_to,
    when,
)
from steelyard.formats.parts import is_stored_transposed
from steelyard.formats.schemes import Scheme

CHUNK = 16
_DTYPE_MAX = {"f32": float(np.finfo(np.float32).max), "bf16": 3.3895313892515355e38, "f16": 65504.0}


@dataclass(frozen=True)
class Run:
    """Where a run lies: `across` is a row of the stored array (of MX columns: a column), `along` its first element."""

    across: Value
    along: Value


@dataclass(frozen=True)
class Copy:
    """How one copy is made. `given_scale`: a per-tensor scale is read, and the amax of the source recorded."""

    scheme: Scheme
    columnwise: bool
    aligned: bool
    given_scale: bool = False

    @property
    def usage(self) -> str:
        return "col" if self.columnwise else "row"

    @property
    def name(self) -> str:
        scheme = self.scheme
        options = "".join(f"_{key}_{value}" for key, value in scheme.options().items() if key not in ("epsilon",))
        element = {"f8E4M3FN": "e4m3", "f8E5M2": "e5m2", "f4E2M1FN": "e2m1"}[scheme.element]
        return f"{self.usage}_{element}_{scheme.block}{options}{'_scaled' if self.given_scale else ''}"

    @property
    def is_fp4(self) -> bool:
        return self.scheme.element == "f4E2M1FN"

    @property
    def is_stochastic(self) -> bool:
        return self.scheme.rounding == "stochastic"

    @property
    def is_transposed(self) -> bool:
        """The stored array is the transpose of the matrix."""
        return is_stored_transposed(self.scheme, self.columnwise)

    @property
    def width(self) -> int:
        """Elements of a run."""
        return {"tensor": CHUNK, "block": 128, "mx": 32, "nvfp4": 16}[self.scheme.family]

    @property
    def tile_side(self) -> int:
        return 128 if self.scheme.family == "block" else 64

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        own = ["codes", "scales"]
        own += ["scale"] if self.given_scale else []
        own += ["amax"] if self.scheme.family in ("tensor", "nvfp4") else []
        own += ["rng"] if self.is_stochastic else []
        return tuple(Parameter(f"{self.usage}_{name}") for name in own)

    def codes_bytes(self, count: int) -> int:
        return count // 2 if self.is_fp4 else count

    def staging_pitch(self, side: int) -> int:
        """Bytes from one staged line to the next: one chunk more than a line, for the banks' sake."""
        return self.codes_bytes(side) + self.codes_bytes(CHUNK)


@dataclass(frozen=True)
class CopyPass:
    """The making of a copy of one tile."""

    copy: Copy
    scope: Scope
    tile: Tile
    place: Place
    staging: Pointer
    random: RandomTile | None
    block_amax: Pointer | None
    threads: int

    def make(self) -> None:
        """Stage the codes, store the scales, then store the codes; all threads take part."""
        random = self._fill_random()
        scales = self._tensor_scales()
        runs = self.tile.side // self.copy.width * self.tile.side
        if self.copy.scheme.family == "tensor" or runs > self.threads:
            loop(self.scope.thread, runs, self.threads, lambda index: self._make_run(index, scales, random))
        else:
            self._make_run(self.scope.thread, scales, random)
        barrier()
        self._store_codes()

    @property
    def _limits(self) -> tuple[Value, Value]:
        """Elements across and along that the matrix has from this tile's begin on."""
        rows, columns = self.place.rows - self.place.row, self.place.columns - self.place.column
        return (columns, rows) if self.copy.columnwise else (rows, columns)

    @property
    def _starts(self) -> tuple[Value, Value]:
        row, column = self.place.row, self.place.column
        return (column, row) if self.copy.columnwise else (row, column)

    def _pointer(self, name: str) -> Pointer:
        return self.scope.pointer(f"{self.copy.usage}_{name}")

    def _fill_random(self) -> RandomTile | None:
        if self.random is None:
            return None
        state = RandomState.load(self._pointer("rng"), int(self.copy.columnwise))
        parts = self.tile.side // CHUNK + 1
        columns = self.place.columns
        if self.copy.scheme.rht and not self.copy.columnwise:
            columns = _rounded_up(columns, CHUNK)
        random = self.random

        def fill(index: Value) -> None:
            row, part = index // parts, index % parts
            wide_row = signed_to(self.place.row + row, "i64")
            first = wide_row * signed_to(columns, "i64") + signed_to(self.place.column, "i64")
            random.fill_row_part(state, row, part, first)

        loop(self.scope.thread, self.tile.side * parts, self.threads, fill)
        barrier()
        return random

    def _tensor_scales(self) -> tuple[Value, Value] | None:
        """What one tensor's values share: encode and decode scale."""
        scheme = self.copy.scheme
        if scheme.family == "tensor":
            scale = self._per_tensor_scale()
            inverse = 1.0 / scale
            first = (self.scope.thread | self.scope.block).equals(0)
            when(first, lambda: self._pointer("scales").store(inverse))
            return scale, inverse
        if scheme.family == "nvfp4" and scheme.second_level == "tensor":
            return self._second_level(self._pointer("amax").load("f32"))
        return None

    def _per_tensor_scale(self) -> Value:
        scheme = self.copy.scheme
        if self.copy.given_scale:
            return self._pointer("scale").load("f32")
        amax = self._pointer("amax").load("f32")
        return scale_from_amax(amax, scheme.element_max, epsilon=scheme.epsilon, power_of_two=scheme.power_of_two)

    def _second_level(self, amax: Value) -> tuple[Value, Value]:
        encode_scale = scale_from_amax(amax, nvfp4_range(self.copy.scheme))
        return encode_scale, 1.0 / encode_scale

    def _run_of(self, index: Value) -> Run:
        """Neighbouring threads take neighbouring rows: the rows of a block are then lanes of one warp."""
        side = self.tile.side
        return Run(index % side, index // side * self.copy.width)

    def _make_run(self, index: Value, scales: tuple[Value, Value] | None, random: RandomTile | None) -> None:
        run = self._run_of(index)
        makers = {
            "tensor": self._cast_tensor,
            "block": self._cast_block,
            "mx": self._cast_mx,
            "nvfp4": self._cast_nvfp4,
        }
        makers[self.copy.scheme.family](run, scales, random)

    def _read(self, run: Run, offset: Value | int = 0) -> list[Value]:
        """A chunk of a run, transformed where the scheme transforms."""
        values = self.tile.read(run.across, run.along + offset, CHUNK, columnwise=self.copy.columnwise)
        return hadamard.transform(values) if self.copy.scheme.rht else values

    def _is_inside(self, run: Run) -> Value:
        across, along = self._limits
        return (run.across < across) & (run.along < along)

    def _cast_tensor(self, run: Run, scales, _random) -> None:
        values = self._read(run)
        self._stage(run, 0, [value * scales[0] for value in values])
        if self.copy.given_scale:
            largest = warp_maximum(amax_bits(values))
            first_lane(self.scope.thread, lambda: self._pointer("amax").raise_to(largest))

    def _cast_block(self, run: Run, _scales, _random) -> None:
        amax = bitcast(self._join_rows(self._run_amax(run)), "f32")
        scheme = self.copy.scheme
        scale = scale_from_amax(
            amax,
            scheme.element_max,
            epsilon=scheme.epsilon,
            power_of_two=scheme.power_of_two,
            limit=_DTYPE_MAX[self.tile.dtype],
        )
        self._store_scale(run, 1.0 / scale)
        self._stage_chunks(run, scale)

    def _cast_mx(self, run: Run, _scales, _random) -> None:
        amax = bitcast(self._join_rows(self._run_amax(run)), "f32")
        byte = e8m0_from_amax(amax, self.copy.scheme, self.scope.target)
        self._store_scale(run, convert(byte, "i8"))
        self._stage_chunks(run, e8m0_encode_factor(byte))

    def _cast_nvfp4(self, run: Run, scales, random: RandomTile | None) -> None:
        scheme = self.copy.scheme
        values = self._read(run)
        block_amax = bitcast(self._join_rows(amax_bits(values)), "f32")
        amax = self._amax_of(run) if scales is None else self._pointer("amax").load("f32")
        encode_scale, decode_scale = self._second_level(amax) if scales is None else scales
        if scheme.four_over_six != "none":
            words, byte = four_over_six.choose(
                values,
                block_amax,
                amax,
                (encode_scale, decode_scale),
                scheme.four_over_six,
                self._add_rows,
                self.scope.target,
            )
            self._stage_words(run, 0, words)
        else:
            byte = nvfp4_block_byte(block_amax, encode_scale)
            factor = nvfp4_encode_factor(byte, decode_scale)
            self._stage(run, 0, self._dithered(run, [value * factor for value in values], random))
        self._store_scale(run, byte)

    def _amax_of(self, run: Run) -> Value:
        """The amax of the run's row; outside of the matrix that of its last row."""
        start, limit = self._starts[0], self._limits[0]
        row = signed_to(start + minimum_signed(run.across, limit - 1), "i64")
        return self._pointer("amax").at(row * 4).load("f32")

    def _dithered(self, run: Run, values: list[Value], random: RandomTile | None) -> list[Value]:
        if random is None:
            return values
        drawn = []
        for index in range(CHUNK):
            along = run.along + index
            pointer = random.byte(along, run.across) if self.copy.columnwise else random.byte(run.across, along)
            drawn.append(pointer.load("i8"))
        return [dither(value, byte) for value, byte in zip(values, drawn, strict=True)]

    def _run_amax(self, run: Run) -> Value:
        def grow(offset: Value, largest: Value) -> list[Value]:
            return [maximum_unsigned(largest, amax_bits(self._read(run, offset)))]

        (largest,) = loop(i32(0), self.copy.width, CHUNK, grow, [constant(0, "i32")])
        return largest

    def _stage_chunks(self, run: Run, factor: Value) -> None:
        def stage(offset: Value) -> None:
            self._stage(run, offset, [value * factor for value in self._read(run, offset)])

        loop(i32(0), self.copy.width, CHUNK, stage)

    def _join_rows(self, largest: Value) -> Value:
        """The amax of a block from those of its rows, which are lanes of a warp or, for 128x128, all threads."""
        block = self.copy.scheme.block
        if block == "32x32":
            return warp_maximum(largest)
        if block == "16x16":
            for distance in (8, 4, 2, 1):
                largest = maximum_unsigned(largest, shuffle_xor(largest, distance))
            return largest
        return self._join_threads(largest) if block == "128x128" else largest

    def _join_threads(self, largest: Value) -> Value:
        assert self.block_amax is not None
        slots = self.block_amax
        of_warp = warp_maximum(largest)
        first_lane(self.scope.thread, lambda: slots.at(self.scope.thread >> 3).store(of_warp))
        barrier()
        total = constant(0, "i32")
        for slot in slots.load_words(4):
            total = maximum_unsigned(total, slot)
        return total

    def _add_rows(self, error: Value) -> Value:
        """Errors of a 16x16 tile, its rows added as a tree; those of other blocks as they are."""
        if self.copy.scheme.block != "16x16":
            return error
        for distance in (8, 4, 2, 1):
            error = error + shuffle_xor(error, distance)
        return error

    def _store_scale(self, run: Run, scale: Value) -> None:
        """One scale a run, at its place in the compact layout; of 128x128 tiles one in all."""
        size = 4 if scale.is_float else 1
        start_across, start_along = (signed_to(start, "i64") for start in self._starts)
        across = start_across + signed_to(run.across, "i64")
        along = (start_along + signed_to(run.along, "i64")) // self.copy.width
        condition = self._is_inside(run)
        pitch = self._scale_pitch()
        if self.copy.scheme.block == "128x128":
            condition = self.scope.thread.equals(0)
            across = start_across // 128
        index = along * pitch + across if self._scales_lie_along_rows else across * pitch + along
        when(condition, lambda: self._pointer("scales").at(index * size).store(scale))

    @property
    def _scales_lie_along_rows(self) -> bool:
        return self.copy.scheme.family == "mx" and self.copy.columnwise

    def _scale_pitch(self) -> Value:
        """Scales from one line of the compact layout to the next."""
        if self._scales_lie_along_rows:
            return signed_to(self.place.columns, "i64")
        length = self.place.rows if self.copy.columnwise else self.place.columns
        return signed_to((length + (self.copy.width - 1)) // self.copy.width, "i64")

    def _stage(self, run: Run, offset: Value | int, values: list[Value]) -> None:
        self._stage_words(run, offset, encode_words(values, self.copy.scheme.element, self.scope.target))

    def _stage_words(self, run: Run, offset: Value | int, words: list[Value]) -> None:
        pitch = self.copy.staging_pitch(self.tile.side)
        along = run.along + offset
        if self.copy.columnwise and not self.copy.is_transposed:
            for index in range(CHUNK):
                byte = convert(words[index // 4] >> (8 * (index % 4)), "i8")
                self.staging.at((along + index) * pitch + run.across).store(byte)
            return
        byte_along = along >> 1 if self.copy.is_fp4 else along
        self.staging.at(run.across * pitch + byte_along).store_words(words)

    def _store_codes(self) -> None:
        """Staged lines to global memory, by vectors where lines are made of whole ones."""
        lines, line_bytes = self._line_limits()
        side_bytes = self.copy.codes_bytes(self.tile.side)
        vector = self.copy.codes_bytes(CHUNK) if self.copy.aligned else 1
        per_line = side_bytes // vector
        move = self._move_vector if self.copy.aligned else self._move_byte

        def store(index: Value) -> None:
            line, offset = index // per_line, index % per_line * vector
            inside = (line < lines) & (offset < line_bytes)
            when(inside, partial(move, line, offset))

        loop(self.scope.thread, self.tile.side * per_line, self.threads, store)

    def _line_limits(self) -> tuple[Value, Value]:
        """How many lines of how many bytes of this tile are in the stored array."""
        across, along = self._limits
        if self.copy.columnwise and not self.copy.is_transposed:
            across, along = along, across
        along = _rounded_up(along, CHUNK) if self.copy.scheme.rht else along
        return across, (along + 1) >> 1 if self.copy.is_fp4 else along

    def _address(self, line: Value, offset: Value) -> Pointer:
        starts = self._starts
        lengths = (
            (self.place.columns, self.place.rows) if self.copy.columnwise else (self.place.rows, self.place.columns)
        )
        if self.copy.columnwise and not self.copy.is_transposed:
            starts, lengths = starts[::-1], lengths[::-1]
        length = _rounded_up(lengths[1], CHUNK) if self.copy.scheme.rht else lengths[1]
        pitch, start = length, starts[1]
        if self.copy.is_fp4:
            pitch, start = (length + 1) >> 1, starts[1] >> 1
        row = signed_to(starts[0] + line, "i64")
        return self._pointer("codes").at(row * signed_to(pitch, "i64") + signed_to(start + offset, "i64"))

    def _move_vector(self, line: Value, offset: Value) -> None:
        staged = self.staging.at(line * self.copy.staging_pitch(self.tile.side) + offset)
        words = self.copy.codes_bytes(CHUNK) // 4
        self._address(line, offset).store_words(staged.load_words(words))

    def _move_byte(self, line: Value, offset: Value) -> None:
        byte = self.staging.at(line * self.copy.staging_pitch(self.tile.side) + offset).load("i8")
        if self.copy.is_fp4 and not self.copy.scheme.rht:
            # A missing last code is zero, whatever the scale made of it.
            missing = (offset << 1) + 1 >= self._limits[1]
            byte = select(missing, byte & 15, byte)
        self._address(line, offset).store(byte)


def amax_bits(values: list[Value]) -> Value:
    """The largest magnitude as the bits of a float32: integers order NaN above all numbers, and it is made one NaN."""
    largest = constant(0, "i32")
    for value in values:
        largest = maximum_unsigned(largest, bitcast(value, "i32") & 0x7FFFFFFF)
    return select(compare_unsigned(largest, ">", 0x7F800000), constant(CANONICAL_NAN, "i32"), largest)


def _rounded_up(size: Value, multiple: int) -> Value:
    return (size + (multiple - 1)) // multiple * multiple
