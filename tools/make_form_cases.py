"""Makes tests/data/forms: small quantised matrices in every spelling, written by the libraries that own them.

A case is one safetensors file: the tensors of the module "m" as a checkpoint has them, "expected" (F32 [rows, K], what
the library makes of the first rows) and, for those that need it, a "quantization_config" beside it in cases.json.
compressed-tensors compresses and decompresses its own formats. The others are written here after their definition:
fp8 blocks as transformers' Fp8Dequantize reads them, GPTQ and AWQ as gptqmodel and autoawq pack them.

    python3 -m venv /tmp/venv-forms && /tmp/venv-forms/bin/pip install torch transformers compressed-tensors safetensors
    /tmp/venv-forms/bin/python tools/make_form_cases.py                       # the cases
    /tmp/venv-forms/bin/python tools/make_form_cases.py --models build/megalith  # and whole models, below

--models writes a random Qwen3 model in every spelling into a temporary folder, and beside it a plain model of the
dequantised weights. It prints KL(transformers in fp32 || Megalith) and KL(transformers in fp32 || in bf16), where both
transformers have the dequantised weights: the first must not be larger.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np  # noqa: E402
import torch  # noqa: E402
from compressed_tensors.compressors import BaseCompressor  # noqa: E402
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8  # noqa: E402
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "forms"
ROWS, K, EXPECTED_ROWS = 40, 288, 6
E4M3 = torch.float8_e4m3fn


def blocks_of(weight, rows, columns):
    """weight's largest magnitudes of blocks [rows, columns]."""
    n, k = weight.shape
    padded = torch.zeros(-(-n // rows) * rows, -(-k // columns) * columns)
    padded[:n, :k] = weight.abs()
    return padded.view(-(-n // rows), rows, -(-k // columns), columns).amax(dim=(1, 3))


def spread(scales, rows, columns, shape):
    return scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[:shape[0], :shape[1]]


def fp8_block(weight, dtype=torch.bfloat16):
    scale = (blocks_of(weight, 128, 128) / 448).to(dtype)
    full = spread(scale.float(), 128, 128, weight.shape)
    codes = (weight / full).to(E4M3)
    return {"weight": codes, "weight_scale_inv": scale}, codes.float() * full


def fp8_tensor(weight):
    scale = weight.abs().max() / 448
    codes = (weight / scale).to(E4M3)
    return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(1.0)}, codes.float() * scale


def fbgemm(weight):
    scale = weight.abs().amax(dim=1, keepdim=True) / 448
    codes = (weight / scale).to(E4M3)
    return ({"weight": codes, "weight_scale": scale, "input_scale_ub": torch.tensor([1200.0])}, codes.float() * scale)


def modelopt_fp4(weight):
    tensors, expected = compressed("nvfp4-pack-quantized", dict(num_bits=4, type="float", group_size=16,
                                                                strategy="tensor_group"))(weight)
    return ({"weight": tensors["weight_packed"], "weight_scale": tensors["weight_scale"],
             "weight_scale_2": 1 / tensors["weight_global_scale"], "input_scale": torch.tensor(0.5)}, expected)


def parameters(weight, args):
    """(scales, zero points, global scale) of rounding to nearest."""
    group = {"channel": weight.shape[1], "tensor": weight.shape[1]}.get(args["strategy"], args.get("group_size"))
    if args["strategy"] == "block":
        return blocks_of(weight, 128, 128) / 448, None, None
    grouped = weight.reshape(weight.shape[0], -1, group)
    if args["strategy"] == "tensor":
        grouped = weight.reshape(1, 1, -1)
    low, high = grouped.amin(dim=-1), grouped.amax(dim=-1)
    largest = torch.maximum(low.abs(), high.abs())
    if args["type"] == "float" and args["num_bits"] == 4:
        if group == 32:  # powers of two
            return torch.exp2(torch.floor(torch.log2(largest)) - 2), None, None
        overall = 448 * 6 / weight.abs().max()
        return (largest / 6 * overall).to(E4M3).float(), None, overall.reshape(1)
    if args["type"] == "float":
        scale = largest / 448
        return (scale.reshape(1) if args["strategy"] == "tensor" else scale), None, None
    if args.get("symmetric", True):
        return largest / (2 ** (args["num_bits"] - 1) - 0.5), None, None
    scale = (high.clamp(min=0) - low.clamp(max=0)) / (2 ** args["num_bits"] - 1)
    zero = torch.round(-low.clamp(max=0) / scale) - 2 ** (args["num_bits"] - 1)
    return scale, zero.to(torch.int8), None


def compressed(name, args):
    """A writer that is compressed-tensors itself."""
    def write(weight):
        compressor = BaseCompressor.get_value_from_registry(name)
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
        scale, zero, overall = parameters(weight, args)
        state = {"weight": weight, "weight_scale": scale}
        if zero is not None:
            state["weight_zero_point"] = zero
        if overall is not None:
            state["weight_global_scale"] = overall
        packed = compressor.compress(state, scheme)
        plain = compressor.decompress(dict(packed), scheme)["weight"].float()
        if args["type"] == "float" and args["num_bits"] == 4:  # the library rounds these to bf16
            codes = unpack_fp4_from_uint8(packed["weight_packed"], *weight.shape).float()
            exact = codes * (scale / (1 if overall is None else overall)).repeat_interleave(args["group_size"], 1)
            assert ((exact - plain).abs() <= 2 ** -7 * exact.abs()).all()
            plain = exact
        return {k: v.contiguous() if isinstance(v, torch.Tensor) else v for k, v in packed.items()}, plain
    return write


def group_codes(weight, group, bits, symmetric):
    """(codes 0 to 2^bits - 1 [N, K], scales [N, groups], zero points [N, groups])"""
    grouped = weight.reshape(weight.shape[0], -1, group)
    low, high = grouped.amin(-1), grouped.amax(-1)
    if symmetric:
        scale = torch.maximum(low.abs(), high.abs()) / (2 ** (bits - 1) - 0.5)
        zero = torch.full_like(scale, 2 ** (bits - 1))
    else:
        scale = (high.clamp(min=0) - low.clamp(max=0)) / (2 ** bits - 1)
        zero = torch.round(-low.clamp(max=0) / scale).clamp(1, 2 ** bits - 1)
    scale = scale.half().float()
    codes = (torch.round(grouped / scale[..., None]) + zero[..., None]).clamp(0, 2 ** bits - 1)
    return codes.reshape(weight.shape).long(), scale, zero.long()


def pack(values, bits, order=None):
    """The last dim to int32, first element lowest; order: which element each place takes."""
    per_word = 32 // bits
    grouped = values.reshape(*values.shape[:-1], -1, per_word)
    if order is not None:
        grouped = grouped[..., order]
    words = torch.zeros(grouped.shape[:-1], dtype=torch.int64)
    for i in range(per_word):
        words |= grouped[..., i] << (bits * i)
    return torch.where(words >= 2 ** 31, words - 2 ** 32, words).to(torch.int32)


def gptq(group, bits=4, symmetric=True, v2=False):
    def write(weight):
        group_size = group if group > 0 else weight.shape[1]
        codes, scale, zero = group_codes(weight, group_size, bits, symmetric)
        stored = (zero - (0 if v2 else 1)) & (2 ** bits - 1)
        expected = (codes - zero.repeat_interleave(group_size, 1)) * scale.repeat_interleave(group_size, 1)
        return {"qweight": pack(codes, bits).t().contiguous(), "qzeros": pack(stored.t(), bits),
                "scales": scale.t().half().contiguous(),
                "g_idx": (torch.arange(weight.shape[1]) // group_size).int()}, expected.float()
    return write


def awq(group):
    def write(weight):
        codes, scale, zero = group_codes(weight, group, 4, False)
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        expected = (codes - zero.repeat_interleave(group, 1)) * scale.repeat_interleave(group, 1)
        return {"qweight": pack(codes.t(), 4, order), "qzeros": pack(zero.t(), 4, order),
                "scales": scale.t().half().contiguous()}, expected.float()
    return write


def ct(name, **weights):
    weights = dict(dict(num_bits=8, type="int", symmetric=True), **weights)
    config = {"quant_method": "compressed-tensors", "format": name, "ignore": ["lm_head", "re:.*embed.*"],
              "quantization_status": "compressed",
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}}
    return compressed(name, weights), config


def gptq_config(bits, group, **other):
    return dict({"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": True}, **other)


CASES = {
    "fp8_block": (fp8_block, {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                              "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}),
    "fp8_block_f32": (lambda w: fp8_block(w, torch.float32), {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "fp8_tensor": (fp8_tensor, {"quant_method": "fp8", "activation_scheme": "static"}),
    "fbgemm_fp8": (fbgemm, {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}),
    "modelopt_fp8": (fp8_tensor, {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}),
    "modelopt_fp4": (modelopt_fp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "ct_fp8_tensor": ct("float-quantized", type="float", strategy="tensor"),
    "ct_fp8_channel": ct("float-quantized", type="float", strategy="channel"),
    "ct_fp8_block": ct("float-quantized", type="float", strategy="block", block_structure=[128, 128]),
    "ct_int8_channel": ct("int-quantized", strategy="channel"),
    "ct_int8_zeros": ct("int-quantized", strategy="channel", symmetric=False),
    "ct_int8_packed": ct("pack-quantized", strategy="group", group_size=96),
    "ct_int4_group": ct("pack-quantized", num_bits=4, strategy="group", group_size=32),
    "ct_int4_zeros": ct("pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=False),
    "ct_int4_channel": ct("pack-quantized", num_bits=4, strategy="channel"),
    "ct_mxfp4": ct("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32),
    "ct_nvfp4": ct("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16),
    "gptq": (gptq(32), gptq_config(4, 32)),
    "gptq_zeros": (gptq(96, symmetric=False), gptq_config(4, 96, sym=False, checkpoint_format="gptq")),
    "gptq_v2": (gptq(32, symmetric=False, v2=True), gptq_config(4, 32, sym=False, checkpoint_format="gptq_v2")),
    "gptq_int8": (gptq(-1, bits=8), gptq_config(8, -1)),
    "awq": (awq(32), {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
                      "modules_to_not_convert": None}),
}


def write_cases():
    OUTPUT.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(7)
    for name, (write, config) in CASES.items():
        weight = (torch.randn(ROWS, K, generator=generator) * 0.04 + 0.01).bfloat16().float()
        tensors, expected = write(weight)
        error = float((expected - weight).abs().max() / weight.abs().max())
        assert error < 0.2, (name, error)
        tensors = {"m." + suffix: tensor for suffix, tensor in tensors.items()}
        save_file(dict(tensors, expected=expected[-EXPECTED_ROWS:].contiguous()), OUTPUT / f"{name}.safetensors")
        print(f"{name}: largest error {error:.4f} of the largest weight")
    with open(OUTPUT / "cases.json", "w") as file:
        json.dump({name: config for name, (_, config) in CASES.items()}, file, indent=1)
        file.write("\n")


def kl(reference, other):
    def log_softmax(logits):
        shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    p, q = log_softmax(reference), log_softmax(other)
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


@torch.no_grad()
def transformers_logits(folder, dtype, attention, ids):
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention)
    return model.eval()(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def check_models(megalith, only):
    import make_reference
    model = make_reference.model("forms", 3, "Qwen3", 288, (4, 2), 96, 576, 3, 320, tied=True, theta=1e6)
    ids = make_reference.prompt_of(model)
    failures = 0
    print("| spelling | KL Megalith | KL transformers bf16 |\n|---|---|---|")
    for name, (write, config) in CASES.items():
        if only is not None and only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            plain, packed = os.path.join(folder, "plain"), os.path.join(folder, "packed")
            tensors, dequantised = {}, {}
            for key, array in make_reference.stored_weights(model).items():
                weight = torch.from_numpy(array).view(torch.bfloat16)
                dequantised[key] = tensors[key] = weight
                if key.endswith("_proj.weight"):
                    parts, dequantised[key] = write(weight.float())
                    del tensors[key]
                    tensors.update({key[:-len("weight")] + suffix: part for suffix, part in parts.items()})
            for path, content, extra in ((plain, dequantised, {}), (packed, tensors, {"quantization_config": config})):
                os.mkdir(path)
                save_file({k: v.contiguous() for k, v in content.items()}, os.path.join(path, "model.safetensors"),
                          metadata={"format": "pt"})
                with open(os.path.join(path, "config.json"), "w") as file:
                    json.dump(dict(make_reference.config_of(model), **extra), file)
            exact = transformers_logits(plain, torch.float32, "eager", ids)
            bf16 = min(kl(exact, transformers_logits(plain, torch.bfloat16, a, ids)) for a in ("sdpa", "eager"))
            out = os.path.join(folder, "logits.npy")
            subprocess.run([megalith, "score", "--device", "cpu", packed, "--tokens", ",".join(map(str, ids)),
                            "--logits", out], check=True, stdout=subprocess.DEVNULL)
            own = kl(exact, np.load(out))
            failures += own > bf16
            print(f"| {name} | {own:.3g} | {bf16:.3g} |{' TOO LARGE' if own > bf16 else ''}", flush=True)
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", metavar="MEGALITH")
    parser.add_argument("--only")
    arguments = parser.parse_args()
    if arguments.models:
        sys.exit(check_models(arguments.models, arguments.only))
    write_cases()
