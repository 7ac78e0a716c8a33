"""One quantized copy of a tile: each thread takes strips of it along the reduction.

The amaxes of a strip are joined with those of other lanes where a block spans several, and give the scales by which its
values are cast; codes go through shared memory so that they leave it as whole lines.
"""

from dataclasses import dataclass

import numpy as np

from steelyard.codegen import four_over_six, hadamard
from steelyard.codegen.formats import encode_pair, encode_words
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
    static_encode_factor,
)
from steelyard.codegen.sources import Place
from steelyard.codegen.strips import (
    CHUNK,
    HALF_WARP,
    Chunk,
    Strip,
    column_strip,
    join_peaks,
    line_amaxes,
    no_peaks,
    row_strip,
    strip_count,
)
from steelyard.codegen.tile import Tile
from steelyard.codegen.values import (
    Value,
    bitcast,
    constant,
    convert,
    either,
    i32,
    loop,
    maximum_unsigned,
    minimum_signed,
    multiply_all,
    repeat,
    select,
    signed_to,
    when,
)
from steelyard.formats.parts import is_stored_transposed, part_names, shared_rows
from steelyard.formats.schemes import Scheme

_DTYPE_MAX = {"f32": float(np.finfo(np.float32).max), "bf16": 3.3895313892515355e38, "f16": 65504.0}
_HELD_CHUNKS = 2
"""Chunks that a thread keeps in registers from its amax to its cast; longer strips are read twice."""


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
    def has_tensor_scale(self) -> bool:
        """One scale, or one second-level scale, is for all values."""
        scheme = self.scheme
        return scheme.family == "tensor" or (scheme.family == "nvfp4" and scheme.second_level == "tensor")

    @property
    def width(self) -> int:
        """Elements of a run."""
        return max(self.scheme.block_sizes) if self.scheme.has_blocks else CHUNK

    @property
    def tile_side(self) -> int:
        return 128 if self.scheme.family == "block" else 64

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        own = ["codes", "scales"]
        own += ["scale"] if self.given_scale else []
        own += ["amax"] if self.scheme.family in ("tensor", "row", "nvfp4") else []
        own += ["rng"] if self.is_stochastic else []
        return tuple(Parameter(f"{self.usage}_{name}") for name in own)

    @property
    def shared_rows(self) -> dict[str, int]:
        """How its parts lie in a tensor in groups; see `TileKernel`."""
        own = {part: shared_rows(self.scheme, part, self.columnwise) for part in part_names(self.scheme)}
        # The amaxes of lines, which a copy with a scale per row does not keep.
        own |= {"amax": 0 if self.columnwise else 1} if self.scheme.family == "row" else {}
        # A static scale is one for all groups.
        own |= {"scale": 0} if self.given_scale and not self.scheme.is_static else {}
        return {f"{self.usage}_{part}": rows for part, rows in own.items()}

    def codes_bytes(self, count: int) -> int:
        return count // 2 if self.is_fp4 else count


@dataclass(frozen=True)
class Staging:
    """Codes on their way out, line by line. Like those of a tile, lines are apart so that their banks differ."""

    memory: Pointer
    line_bytes: int
    chunk_bytes: int

    @classmethod
    def allocate(cls, scope: Scope, copies: tuple[Copy, ...], side: int) -> "Staging":
        """Memory for one copy after the other."""
        line, chunk = (max(copy.codes_bytes(count) for copy in copies) for count in (side, CHUNK))
        return cls(scope.shared.allocate(side * (line + chunk) + side // CHUNK * 2 * CHUNK), line, chunk)

    def of(self, copy: Copy, side: int) -> "Staging":
        """The same memory, laid out for a copy."""
        return Staging(self.memory, copy.codes_bytes(side), copy.codes_bytes(CHUNK))

    def at(self, line: Value, offset: Value) -> Pointer:
        return self.memory.at(line * (self.line_bytes + self.chunk_bytes) + (line >> 4) * (2 * CHUNK) + offset)

    def lines_further(self, lines: int) -> int:
        """Bytes from one line to another, of the same 16 or whole sixteens further."""
        return lines * (self.line_bytes + self.chunk_bytes) + lines // CHUNK * 2 * CHUNK


@dataclass(frozen=True)
class CopyPass:
    """The making of a copy of one tile. `is_whole`: the tile lies in the matrix with all of its elements."""

    copy: Copy
    scope: Scope
    tile: Tile
    place: Place
    is_whole: Value
    staging: Staging
    random: RandomTile | None
    block_amax: Pointer | None
    shared_scales: Pointer | None
    threads: int

    def prepare(self) -> None:
        """Before the tile is filled: one thread works out the scales that one tensor's values share, for all."""
        if self.shared_scales is None:
            return
        slots = self.shared_scales

        def find() -> None:
            encode_scale, decode_scale = self._tensor_scales()
            slots.store_words([bitcast(scale, "i32") for scale in (encode_scale, decode_scale)])

        when(self.scope.thread.equals(0), find)

    def make(self) -> None:
        """Stage the codes, store the scales, then store the codes; all threads take part."""
        self._fill_random()
        scales = None
        if self.shared_scales is not None:
            encode_scale, decode_scale = self.shared_scales.load_words(2)
            scales = bitcast(encode_scale, "f32"), bitcast(decode_scale, "f32")
        strips = strip_count(self.tile.side, self._lines, self._chunks)
        repeat(strips // self.threads, lambda step: self._make_strip(step * self.threads + self.scope.thread, scales))
        barrier()
        self._store_codes()

    @property
    def _lines(self) -> int:
        """Lines of a strip: two columns share the words of their rows."""
        return 2 if self.copy.columnwise else 1

    @property
    def _chunks(self) -> int:
        """Chunks of a strip: lanes half a warp apart share a block of columns."""
        chunks = self.copy.width // CHUNK
        return max(1, chunks // 2) if self.copy.columnwise else chunks

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

    def _fill_random(self) -> None:
        if self.random is None:
            return
        state = RandomState.load(self._pointer("rng"), int(self.copy.columnwise), self.scope.group)
        columns, begin = self.place.columns, (self.place.row, self.place.column)
        if self.copy.scheme.rht and not self.copy.columnwise:
            columns = _rounded_up(columns, CHUNK)
        in_groups = self.copy.aligned and not self.copy.columnwise
        self.random.fill(state, begin, columns, self.scope.thread, self.threads, in_groups=in_groups)
        barrier()

    def _tensor_scales(self) -> tuple[Value, Value]:
        """What one tensor's values share: encode and decode scale."""
        if self.copy.scheme.family == "nvfp4":
            return self._second_level(self._pointer("amax").load("f32"))
        scale, inverse = self._per_tensor_scales()
        first = (self.scope.thread | self.scope.block).equals(0)
        when(first, lambda: self._pointer("scales").store(inverse))
        return scale, inverse

    def _per_tensor_scales(self) -> tuple[Value, Value]:
        scheme = self.copy.scheme
        if self.copy.given_scale:
            given = self._pointer("scale").load("f32")
            return (static_encode_factor(given, scheme), given) if scheme.is_static else (given, 1.0 / given)
        amax = self._pointer("amax").load("f32")
        options = {"epsilon": scheme.epsilon, "power_of_two": scheme.power_of_two}
        scale = scale_from_amax(amax, scheme.element_max, **options)
        return scale, 1.0 / scale

    def _second_level(self, amax: Value) -> tuple[Value, Value]:
        scheme = self.copy.scheme
        if scheme.is_static:
            return static_encode_factor(amax, scheme), 1.0 / amax if scheme.source == "divisor" else amax
        encode_scale = scale_from_amax(amax, nvfp4_range(scheme))
        return encode_scale, 1.0 / encode_scale

    def _make_strip(self, index: Value, scales: tuple[Value, Value] | None) -> None:
        side = self.tile.side
        if self.copy.columnwise:
            strip = column_strip(index, side, self._chunks)
        else:
            strip = row_strip(index, side, self.copy.width)
        makers = {
            "tensor": self._cast_tensor,
            "row": self._cast_row,
            "block": self._cast_block,
            "mx": self._cast_mx,
            "mxfp4": self._cast_mx,
            "nvfp4": self._cast_nvfp4,
        }
        makers[self.copy.scheme.family](strip, scales)

    def _cast_tensor(self, strip: Strip, scales) -> None:
        chunk = strip.read(self.tile, 0)
        self._stage(strip, 0, [self._scaled(line, scales[0]) for line in chunk.values()])
        if self.copy.given_scale:
            largest = warp_maximum(_largest_of(chunk.amaxes()))
            first_lane(self.scope.thread, lambda: self._pointer("amax").raise_to(largest))

    def _cast_row(self, strip: Strip, _scales) -> None:
        scheme = self.copy.scheme
        options = {"epsilon": scheme.epsilon, "power_of_two": scheme.power_of_two}
        amaxes = [self._amax_of(strip, line) for line in range(strip.lines)]
        factors = [scale_from_amax(amax, scheme.element_max, **options) for amax in amaxes]
        self._stage_chunks(strip, [strip.read(self.tile, 0)], factors)
        self._store_row_scales(strip, factors)

    def _cast_block(self, strip: Strip, _scales) -> None:
        scheme = self.copy.scheme
        amaxes, chunks = self._amaxes(strip)
        factors = [
            scale_from_amax(
                amax,
                scheme.element_max,
                epsilon=scheme.epsilon,
                power_of_two=scheme.power_of_two,
                limit=_DTYPE_MAX[self.tile.dtype],
            )
            for amax in amaxes
        ]
        self._store_scales(strip, [1.0 / factor for factor in factors])
        self._stage_chunks(strip, chunks, factors)

    def _cast_mx(self, strip: Strip, _scales) -> None:
        amaxes, chunks = self._amaxes(strip)
        scales = [e8m0_from_amax(amax, self.copy.scheme, self.scope.target) for amax in amaxes]
        self._store_scales(strip, [convert(byte, "i8") for byte in scales])
        self._stage_chunks(strip, chunks, [e8m0_encode_factor(byte) for byte in scales])

    def _cast_nvfp4(self, strip: Strip, scales) -> None:
        amaxes = [self._amax_of(strip, line) for line in range(strip.lines)]
        levels = [self._second_level(amax) if scales is None else scales for amax in amaxes]
        if self.copy.width > CHUNK:
            self._cast_wide_nvfp4(strip, levels)
            return
        values, found = self._transformed(strip.read(self.tile, 0))
        block_amaxes = [bitcast(bits, "f32") for bits in self._join_lanes(found)]
        if self.copy.scheme.four_over_six != "none":
            lines = [four_over_six.Line(*parts) for parts in zip(values, block_amaxes, amaxes, levels, strict=True)]
            words, scale_bytes = four_over_six.choose(
                lines, self.copy.scheme.four_over_six, self._add_lines, self.scope.target
            )
            self._stage_words(strip, 0, words)
        else:
            scale_bytes, factors = _nvfp4_scales(block_amaxes, levels)
            scaled = [self._scaled(line, factor) for line, factor in zip(values, factors, strict=True)]
            self._stage(strip, 0, self._dithered(strip, scaled))
        self._store_scales(strip, scale_bytes)

    def _cast_wide_nvfp4(self, strip: Strip, levels: list[tuple[Value, Value]]) -> None:
        """Blocks of several chunks, which have none of the options of those of 16."""
        block_amaxes, chunks = self._amaxes(strip)
        scale_bytes, factors = _nvfp4_scales(block_amaxes, levels)
        self._store_scales(strip, scale_bytes)
        self._stage_chunks(strip, chunks, factors)

    def _scaled(self, values: list[Value], factor: Value) -> list[Value]:
        # Pairs lie in neighbouring registers: of float32, which has one for each value already, too many are held.
        if self.tile.dtype == "f32":
            return [value * factor for value in values]
        return multiply_all(values, factor)

    def _transformed(self, chunk: Chunk) -> tuple[list[list[Value]], list[Value]]:
        """The values and the amax of each line, transformed where the scheme transforms."""
        if not self.copy.scheme.rht:
            return chunk.values(), chunk.amaxes()
        parts = hadamard.transform_lines(chunk.values(), chunk.dtype)
        return [part.values()[0] for part in parts], [part.amaxes()[0] for part in parts]

    def _amax_of(self, strip: Strip, line: int) -> Value:
        """The tensor's amax, or that of a line; outside of the matrix that of its last line."""
        if self.copy.scheme.second_level == "tensor":
            return self._pointer("amax").load("f32")
        start, limit = self._starts[0], self._limits[0]
        row = signed_to(start + minimum_signed(strip.across + line, limit - 1), "i64")
        return self._pointer("amax").at(row * 4).load("f32")

    def _dithered(self, strip: Strip, lines: list[list[Value]]) -> list[list[Value]]:
        if self.random is None:
            return lines
        if self.copy.columnwise:
            drawn = self.random.read_column_pair(strip.along, strip.across)
        else:
            drawn = [self.random.read_row(strip.across, strip.along)]
        return [
            [dither(value, byte) for value, byte in zip(line, own, strict=True)]
            for line, own in zip(lines, drawn, strict=True)
        ]

    def _amaxes(self, strip: Strip) -> tuple[list[Value], list[Chunk]]:
        """The amax of each line's block, and the chunks that were read for it, if they are few enough to keep."""
        dtype = self.tile.dtype

        def grow(index: Value, *peaks: Value) -> list[Value]:
            return join_peaks(list(peaks), strip.read(self.tile, index).peaks(), dtype)

        chunks = []
        if strip.chunks <= _HELD_CHUNKS:
            chunks = [strip.read(self.tile, index) for index in range(strip.chunks)]
            peaks = chunks[0].peaks()
            for chunk in chunks[1:]:
                peaks = join_peaks(peaks, chunk.peaks(), dtype)
        else:
            peaks = loop(i32(0), strip.chunks, 1, grow, no_peaks(dtype, strip.lines))
        joined = self._join_lanes(line_amaxes(peaks, dtype, strip.lines))
        return [bitcast(amax, "f32") for amax in joined], chunks

    def _stage_chunks(self, strip: Strip, chunks: list[Chunk], factors: list[Value]) -> None:
        def stage(index: Value | int, chunk: Chunk) -> None:
            lines = zip(chunk.values(), factors, strict=True)
            self._stage(strip, index, [self._scaled(line, factor) for line, factor in lines])

        for index, chunk in enumerate(chunks):
            stage(index, chunk)
        if not chunks:
            loop(i32(0), strip.chunks, 1, lambda index: stage(index, strip.read(self.tile, index)))

    def _join_lanes(self, amaxes: list[Value]) -> list[Value]:
        """The amax of each line's block from those of the lanes that share it; for 128x128 they are all threads."""
        block, columnwise = self.copy.scheme.block, self.copy.columnwise
        if block in ("32x32", "16x16", "128x128"):
            amax = _largest_of(amaxes)
            if block == "16x16":
                for distance in (4, 2, 1) if columnwise else (8, 4, 2, 1):
                    amax = maximum_unsigned(amax, shuffle_xor(amax, distance))
            else:
                amax = self._join_threads(amax) if block == "128x128" else warp_maximum(amax)
            return [amax] * len(amaxes)
        if columnwise and self.copy.width > CHUNK:
            return [maximum_unsigned(amax, shuffle_xor(amax, HALF_WARP)) for amax in amaxes]
        return amaxes

    def _join_threads(self, largest: Value) -> Value:
        assert self.block_amax is not None
        slots = self.block_amax
        of_warp = warp_maximum(largest)
        first_lane(self.scope.thread, lambda: slots.at(self.scope.thread >> 3).store(of_warp))
        barrier()
        return _largest_of(slots.load_words(4))

    def _add_lines(self, errors: list[Value]) -> list[Value]:
        """Errors of a 16x16 tile, its lines added as a tree, the farthest first; those of other blocks as they are."""
        if self.copy.scheme.block != "16x16":
            return errors
        for distance in (4, 2, 1) if self.copy.columnwise else (8, 4, 2, 1):
            errors = [error + shuffle_xor(error, distance) for error in errors]
        return [errors[0] + errors[1]] * 2 if self.copy.columnwise else errors

    def _store_scales(self, strip: Strip, scales: list[Value]) -> None:
        """One scale per line, at its place in the compact layout; of 128x128 tiles one in all."""
        width = self.copy.width
        (start_across, start_along), pitch = (signed_to(start, "i64") for start in self._starts), self._scale_pitch()
        size = 4 if scales[0].is_float else 1
        if self.copy.scheme.block == "128x128":
            index = start_across // width * pitch + start_along // width
            when(self.scope.thread.equals(0), lambda: self._pointer("scales").at(index * size).store(scales[0]))
            return
        across, along = convert(strip.across, "i64"), convert(strip.along // width, "i64")
        if self._scales_lie_along_rows:
            index, further = (start_along // width) * pitch + start_across + (along * pitch + across), 1
        else:
            index, further = start_across * pitch + start_along // width + (across * pitch + along), pitch
        begin = self._pointer("scales").at(index * size)
        limit_across, limit_along = self._limits
        stores = strip.along < limit_along
        if self.copy.columnwise and width > CHUNK:
            stores = stores & (strip.along % (2 * CHUNK)).equals(0)
        for line, scale in enumerate(scales):
            place = begin if line == 0 else begin.at(further * size)
            when(stores & (strip.across + line < limit_across), lambda p=place, s=scale: p.store(s))

    def _store_row_scales(self, strip: Strip, factors: list[Value]) -> None:
        """One decode scale per line, by the threads that take the begin of lines."""
        (start_across, start_along), limit = self._starts, self._limits[0]
        begins = (start_along + strip.along).equals(0)
        first = self._pointer("scales").at((signed_to(start_across, "i64") + convert(strip.across, "i64")) * 4)
        for line, factor in enumerate(factors):
            place, inside = first.at(4 * line), begins & (strip.across + line < limit)
            when(inside, lambda p=place, f=factor: p.store(1.0 / f))

    @property
    def _scales_lie_along_rows(self) -> bool:
        return self.copy.scheme.family == "mx" and self.copy.columnwise

    def _scale_pitch(self) -> Value:
        """Scales from one line of the compact layout to the next."""
        if self._scales_lie_along_rows:
            return convert(self.place.columns, "i64")
        length = self.place.rows if self.copy.columnwise else self.place.columns
        return convert((length + (self.copy.width - 1)) // self.copy.width, "i64")

    def _stage(self, strip: Strip, chunk: Value | int, lines: list[list[Value]]) -> None:
        element, target = self.copy.scheme.element, self.scope.target
        if self.copy.columnwise and not self.copy.is_transposed:
            along = strip.along + chunk * strip.step
            begin = self.staging.at(along, strip.across)
            for row, (left, right) in enumerate(zip(*lines, strict=True)):
                begin.at(self.staging.lines_further(row)).store(encode_pair(left, right, element))
            return
        self._stage_words(strip, chunk, [encode_words(line, element, target) for line in lines])

    def _stage_words(self, strip: Strip, chunk: Value | int, lines: list[list[Value]]) -> None:
        along = strip.along + chunk * strip.step
        begin = self.staging.at(strip.across, along >> 1 if self.copy.is_fp4 else along)
        for line, words in enumerate(lines):
            begin.at(self.staging.lines_further(line)).store_words(words)

    def _store_codes(self) -> None:
        """Staged lines to global memory, by vectors where lines are made of whole ones."""
        if self.copy.aligned:
            either(self.is_whole, self._store_whole_lines, self._store_lines)
        else:
            self._store_lines()

    def _store_whole_lines(self) -> None:
        vector = self.copy.codes_bytes(CHUNK)
        per_line = self.staging.line_bytes // vector
        line, offset = self.scope.thread // per_line, self.scope.thread % per_line * vector
        staged, address, pitch = self.staging.at(line, offset), self._address(line, offset), self._line_pitch()
        at_once = self.threads // per_line
        steps = self.tile.side // at_once
        words = [staged.at(self.staging.lines_further(at_once * step)).load_words(vector // 4) for step in range(steps)]
        for step, moved in enumerate(words):
            address.at(pitch * (at_once * step)).store_words(moved)

    def _store_lines(self) -> None:
        lines, line_bytes = self._line_limits()
        vector = self.copy.codes_bytes(CHUNK) if self.copy.aligned else 1
        per_line = self.staging.line_bytes // vector
        move = self._move_vector if self.copy.aligned else self._move_byte

        def store(index: Value) -> None:
            line, offset = index // per_line, index % per_line * vector
            inside = (line < lines) & (offset < line_bytes)
            when(inside, lambda: move(line, offset))

        loop(self.scope.thread, self.tile.side * per_line, self.threads, store)

    def _line_limits(self) -> tuple[Value, Value]:
        """How many lines of how many bytes of this tile are in the stored array."""
        across, along = self._limits
        if self.copy.columnwise and not self.copy.is_transposed:
            across, along = along, across
        along = _rounded_up(along, CHUNK) if self.copy.scheme.rht else along
        return across, (along + 1) >> 1 if self.copy.is_fp4 else along

    def _line_pitch(self) -> Value:
        """Bytes from one line of the stored array to the next."""
        is_as_matrix = not (self.copy.columnwise and self.copy.is_transposed)
        length = self.place.columns if is_as_matrix else self.place.rows
        length = _rounded_up(length, CHUNK) if self.copy.scheme.rht else length
        return convert((length + 1) >> 1 if self.copy.is_fp4 else length, "i64")

    def _address(self, line: Value, offset: Value) -> Pointer:
        across, along = self._starts
        if self.copy.columnwise and not self.copy.is_transposed:
            across, along = along, across
        along = along >> 1 if self.copy.is_fp4 else along
        pitch = self._line_pitch()
        begin = signed_to(across, "i64") * pitch + signed_to(along, "i64")
        return self._pointer("codes").at(begin + (convert(line, "i64") * pitch + convert(offset, "i64")))

    def _move_vector(self, line: Value, offset: Value) -> None:
        words = self.copy.codes_bytes(CHUNK) // 4
        self._address(line, offset).store_words(self.staging.at(line, offset).load_words(words))

    def _move_byte(self, line: Value, offset: Value) -> None:
        byte = self.staging.at(line, offset).load("i8")
        if self.copy.is_fp4 and not self.copy.scheme.rht:
            # A missing last code is zero, whatever the scale made of it.
            missing = (offset << 1) + 1 >= self._limits[1]
            byte = select(missing, byte & 15, byte)
        self._address(line, offset).store(byte)


def _nvfp4_scales(block_amaxes: list[Value], levels: list[tuple[Value, Value]]) -> tuple[list[Value], list[Value]]:
    """The E4M3 byte of each line's block, and what its values are multiplied by."""
    scale_bytes = [nvfp4_block_byte(amax, level[0]) for amax, level in zip(block_amaxes, levels, strict=True)]
    return scale_bytes, [nvfp4_encode_factor(byte, level[1]) for byte, level in zip(scale_bytes, levels, strict=True)]


def _largest_of(values: list[Value]) -> Value:
    largest = constant(0, "i32")
    for value in values:
        largest = maximum_unsigned(largest, value)
    return largest


def _rounded_up(size: Value, multiple: int) -> Value:
    return (size + (multiple - 1)) // multiple * multiple
