"""Names of kernels as they are met in the field, and what those kernels do."""

import csv
import gzip
import io
from pathlib import Path

import pytest

from perfscope.errors import UsageError
from perfscope.merge.kernel_groups import defaults, group_of, load

NAMES = {
    "attention": [
        "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_3_64x64x64_4x1x1_cga1x1x1_kernel0_0",
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>, false>(Flash_fwd_params)",
        "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>(Params)",
        "void vllm::paged_attention_v2_kernel<__nv_bfloat16, 128, 16>(float*)",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0>(Params)",
        "void mmha::masked_multihead_attention_kernel<unsigned short, 128>(Params)",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)",
        "fmha_v2_flash_attention_bf16_64_128_S_q_paged_kv_128_causal_tma_ws_sm90_kernel",
        "kernel_unified_attention_2d",
    ],
    "matrix multiply": [
        "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT",
        "nvjet_sm90_tst_8x64_64x16_4x1_v_bz_TNN",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(cublasLt::cublasSplitKParams<T6>)",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_32x5_tn_align8>(Params)",
        "ampere_sgemm_128x64_tn",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16, 128, 16, 4, 4, false>(cublasGemvParamsEx)",
        "void marlin::Marlin<__nv_bfloat16, 256, 1, 8, 8, 4>(int4 const*)",
        "fused_moe_kernel",
        "triton_tem_fused_mm_3",
    ],
    "norm": [
        "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)",
        "void at::reduce_kernel<512, 1, at::ReduceOp<float, at::MeanOps<float, float, float, float>>>(T3)",
        "void at::vectorized_elementwise_kernel<4, at::rsqrt_kernel_cuda(at::TensorIteratorBase &)>(int, T2, T3)",
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0",
        "void (anonymous namespace)::cunn_SoftMaxForward<8, float, float, float>(float*)",
    ],
    "elementwise": [
        "void at::vectorized_elementwise_kernel<8, at::<unnamed>::silu_kernel(at::TensorIteratorBase &)>(int, T2, T3)",
        "void at::elementwise_kernel<128, 4, void at::gpu_kernel_impl_nocast<at::BinaryFunctor<float>>>(int, T3)",
        "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel, true>(c10::BFloat16*)",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)",
        "triton_poi_fused_mul_silu_4",
    ],
    "communication": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<__nv_bfloat16, 8>(Params)",
    ],
    "KV cache": [
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>(__nv_bfloat16 const*)",
        "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16>(__nv_bfloat16 const*)",
        "void tensorrt_llm::kernels::applyBiasRopeUpdateKVCacheV2<__nv_bfloat16, 128>(QKVPreprocessingParams)",
        "void flashinfer::AppendPagedKVCacheKernel<128, 8>(paged_kv_t)",
    ],
    "quantization": [
        "void vllm::dynamic_scaled_int8_quant_kernel<c10::BFloat16, float>(c10::BFloat16 const*)",
        "void vllm::scaled_fp8_quant_kernel<c10::BFloat16>(c10::BFloat16*)",
        "void per_token_group_quant_8bit_kernel<c10::BFloat16>(void const*)",
        "void tensorrt_llm::kernels::quantize_with_block_size<1>(int)",
        "void gptq_marlin_repack_kernel<256, 8, true>(unsigned int const*)",
    ],
    "sampling": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>(int)",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024>(float*)",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(float)",
    ],
    "copy": [
        "copy HtoD pageable",
        "set device",
        "void at::<unnamed>::CatArrayBatchedCopy<at::<unnamed>::OpaqueType<2>, unsigned int, 4, 64, 64>(T1 *)",
        "void at::vectorized_elementwise_kernel<8, at::bfloat16_copy_kernel_cuda(at::TensorIteratorBase &)>(int, T2)",
        "void at::unrolled_elementwise_kernel<at::direct_copy_kernel_cuda(at::TensorIteratorBase &)>(int, T1)",
    ],
    "other": [
        "void vllm::moe::topkGatingSoftmax<4, 64, 4, 16>(float const*)",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long>(int)",
        "my_kernel(float*)",
    ],
}


@pytest.mark.parametrize(("group", "name"), [(g, n) for g, names in NAMES.items() for n in names])
def test_known_kernels_are_in_their_group(group: str, name: str) -> None:
    assert group_of(name, defaults()) == group


def test_a_project_puts_its_own_patterns_first(tmp_path: Path) -> None:
    (tmp_path / "perfscope.toml").write_text('[kernel-groups]\nattention = ["my_ker"]\ntokenizer = ["^bpe_"]\n')
    rules = load(tmp_path / "below")
    assert group_of("my_kernel(float*)", rules) == "attention"
    assert group_of("bpe_merge", rules) == "tokenizer"
    assert group_of("ampere_sgemm_128x64_tn", rules) == "matrix multiply"
    assert load(Path("/")) == defaults()


@pytest.mark.parametrize("text", ['attention = "x"', 'attention = ["("]', "attention = [1]", "attention = []"])
def test_what_is_no_pattern_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "perfscope.toml").write_text(f"[kernel-groups]\n{text}\n")
    with pytest.raises(UsageError, match=r"perfscope\.toml: kernel-groups\.attention"):
        load(tmp_path)


def test_every_kernel_of_a_decoding_model_has_a_group() -> None:
    text = gzip.decompress((Path(__file__).parents[1] / "data" / "ncu" / "llm_raw.csv.gz").read_bytes()).decode()
    rows = list(csv.reader(io.StringIO(text[text.index('"ID"') :])))
    column = rows[0].index("Kernel Name")
    names = {row[column] for row in rows[2:] if len(row) > column}
    groups = {name: group_of(name, defaults()) for name in names}
    assert len(names) > 10
    assert {name for name, group in groups.items() if group == "other"} == set()
    assert set(groups.values()) == {"attention", "matrix multiply", "norm", "elementwise", "copy"}
