"""Kernel names as two demanglers write them: LLVM/GNU's (in CUPTI's records) and Nsight Compute's."""

import pytest

from perfscope.model.kernel_name import base, canonical

PAIRS = [
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<float>, "
        "std::array<char*, 2ul> >(int, at::native::CUDAFunctorOnSelf_add<float>, std::array<char*, 2ul>)",
        "void at::vectorized_elementwise_kernel<4, at::CUDAFunctorOnSelf_add<float>, std::array<char *, 2>>(int, T2, T3)",
    ),
    (
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, "
        "unsigned int, 4, 64, 64>(at::native::(anonymous namespace)::OpaqueType<2u>*, int)",
        "void at::<unnamed>::CatArrayBatchedCopy<at::<unnamed>::OpaqueType<2>, unsigned int, 4, 64, 64>"
        "(T1 *, at::<unnamed>::CatArrInputTensorMetadata<T1, T2, T4, T5>, at::<unnamed>::TensorSizeStride<T2, 4>, int, T2)",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<8, at::native::(anonymous namespace)::silu_kernel("
        "at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda()#6}::operator()() const::"
        "{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int, int)",
        "void at::vectorized_elementwise_kernel<8, at::<unnamed>::silu_kernel(at::TensorIteratorBase &)::"
        "[lambda() (instance 1)]::operator ()() const::[lambda() (instance 6)]::operator ()() const::"
        "[lambda(c10::BFloat16) (instance 1)], std::array<char *, 2>>(int, T2, T3)",
    ),
    (
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, "
        "float, float, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&, "
        "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> > const&)::"
        "{lambda(int)#1}>(int, at::native::gpu_kernel_impl_nocast<int>(int)::{lambda(int)#1})",
        "void at::elementwise_kernel<128, 2, void at::gpu_kernel_impl_nocast<at::BinaryFunctor<float, float, float, "
        "binary_internal::MulFunctor<float>>>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
    ),
    ("void cutlass::Kernel<(int)4, (bool)1, (cutlass::Layout)2>(int)", "void cutlass::Kernel<4, true, 2>(T1)"),
    ("tiny_grid(float*, int)", "tiny_grid(float *, int)"),
    ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"),
]


@pytest.mark.parametrize(("cupti", "ncu"), PAIRS)
def test_both_spellings_of_a_kernel_have_one_key(cupti: str, ncu: str) -> None:
    assert canonical(cupti) == canonical(ncu) != ""


def test_different_kernels_have_different_keys() -> None:
    keys = {canonical(name) for pair in PAIRS for name in pair}
    assert len(keys) == len(PAIRS)
    lambdas = "void k<f(int)::{lambda()#%d}::operator()() const::{lambda(%s)#1}>(int)"
    assert canonical(lambdas % (1, "float")) != canonical(lambdas % (2, "float"))
    assert canonical(lambdas % (1, "float")) != canonical(lambdas % (1, "c10::BFloat16"))
    assert canonical("void k<f(int)::{lambda()#1}>(int)") != canonical("void k<g(int)::{lambda()#1}>(int)")


def test_a_key_is_its_own_key() -> None:
    for name in (name for pair in PAIRS for name in pair):
        assert canonical(canonical(name)) == canonical(name)


def test_base_is_the_function_alone() -> None:
    assert base(PAIRS[0][0]) == "vectorized_elementwise_kernel"
    assert base(PAIRS[1][1]) == "CatArrayBatchedCopy"
    assert base("tiny_grid(float *, int)") == "tiny_grid"
