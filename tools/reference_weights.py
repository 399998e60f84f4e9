"""Reproducible random weights in numpy: the other half of src/model/dummy_weights.c, bit for bit.

The formula stands in src/model/dummy_weights.h. `draw` gives the float32 values, `store` rounds them to a stored
dtype and gives the bytes that a safetensors file would hold. Run as a program, it prints the table of hashes that
tests/unit/model/test_dummy_weights.c holds: python3 tools/reference_weights.py

Drawing with torch or numpy generators was rejected: their streams are not promised to stay the same, and C would have
to imitate them.
"""
import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MASK = (1 << 64) - 1

# The first matching suffix decides; "" matches every name.
MATRIX_GAINS = [("embed_tokens.weight", 3.0), ("lm_head.weight", 3.0), ("q_proj.weight", 1.5), ("k_proj.weight", 1.5),
                (".gate.weight", 3.0), (".router.weight", 3.0), ("", 1.0)]


def fnv1a64(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def splitmix64(x):
    """The finaliser, on an array of uint64."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def random_bits(name, seed, begin, end):
    """x_i for i in [begin, end), as uint64."""
    first = (fnv1a64(name.encode()) + seed * int(GOLDEN)) & MASK
    stream = splitmix64(np.array([first], dtype=np.uint64))
    with np.errstate(over="ignore"):
        return splitmix64(stream + np.arange(begin + 1, end + 1, dtype=np.uint64) * GOLDEN)


def affine_of(name, dims):
    """(offset, scale) of a tensor, as float32."""
    if len(dims) >= 2:
        gain = next(gain for suffix, gain in MATRIX_GAINS if name.endswith(suffix))
        return np.float32(0), np.float32(gain * np.sqrt(np.float64(3.0) / np.float64(dims[-1])))
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return np.float32(1.5), np.float32(0.375)
    if name.endswith("norm.weight"):
        return np.float32(1), np.float32(0.25)
    return np.float32(0), np.float32(0.5)


def draw(name, seed, dims, begin=0, end=None):
    """Elements [begin, end) of the tensor before rounding to its dtype, as a flat float32 array."""
    end = int(np.prod(dims)) if end is None else end
    offset, scale = affine_of(name, dims)
    bits = (random_bits(name, seed, begin, end) >> np.uint64(40)).astype(np.float32)
    unit = bits * np.float32(2.0**-23) - np.float32(1)
    return offset + scale * unit


def draw_bytes(name, seed, dims):
    """Bytes as tests/support/reference_model.c draws them: any codes, and scales of 2^-6 to 2^-4."""
    bits = random_bits(name, seed, 0, int(np.prod(dims)))
    if name.endswith("_scales"):
        return (np.uint64(121) + (bits >> np.uint64(40)) % np.uint64(3)).astype(np.uint8).reshape(dims)
    return (bits >> np.uint64(56)).astype(np.uint8).reshape(dims)


def store(values, dtype):
    """Rounds float32 values to "bf16" (as uint16 bit patterns), "f16" or "f32"; nearest, ties to even."""
    if dtype == "bf16":
        bits = values.view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    return values.astype({"f16": np.float16, "f32": np.float32}[dtype])


def rounded(values, dtype):
    """The float32 values that a reader of the stored tensor sees."""
    stored = store(values, dtype)
    if dtype == "bf16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float32)


TEST_CASES = [  # name, seed, dtype, dims, begin, end
    ("model.embed_tokens.weight", 0, "bf16", (199, 240), 0, 199 * 240),
    ("model.embed_tokens.weight", 0, "f16", (199, 240), 0, 199 * 240),
    ("model.embed_tokens.weight", 0, "f32", (199, 240), 0, 199 * 240),
    ("lm_head.weight", 1, "bf16", (257, 200), 1023, 3075),
    ("model.layers.0.self_attn.q_proj.weight", 7, "bf16", (320, 240), 0, 320 * 240),
    ("model.layers.11.self_attn.k_proj.weight", 7, "f16", (64, 240), 17, 18),
    ("model.layers.3.mlp.down_proj.weight", MASK, "f32", (240, 400), 95999, 96000),
    ("model.layers.3.mlp.down_proj.weight", MASK, "bf16", (65536, 262144), 1 << 33, (1 << 33) + 2048),
    ("model.layers.0.self_attn.q_norm.weight", 2, "bf16", (128,), 0, 128),
    ("model.layers.1.input_layernorm.weight", 2, "f32", (240,), 0, 240),
    ("model.norm.weight", 2, "f16", (200,), 0, 200),
    ("model.layers.2.self_attn.v_proj.bias", 3, "bf16", (80,), 0, 80),
    ("model.layers.2.self_attn.v_proj.bias", 3, "f32", (80,), 5, 5),
]


def main():
    for name, seed, dtype, dims, begin, end in TEST_CASES:
        data = store(draw(name, seed, dims, begin, end), dtype).tobytes()
        dims_text = ", ".join(map(str, dims))
        print(f'    {{"{name}", {seed}u, MGL_DTYPE_{dtype.upper()}, {len(dims)}, {{{dims_text}}}, {begin}u, {end}u,'
              f' 0x{fnv1a64(data):016x}u}},')


if __name__ == "__main__":
    main()
