"""One kernel in the spelling of the C++ runtime and in that of Nsight Compute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ncu_helpers import unpacked

from perfscope.collectors.ncu import textreport
from perfscope.demangle import demangle
from perfscope.model.kernels import function_name, kernel_key, same_kernels

ADD = "at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::AddFunctor<float> >"
RSQRT = "at::native::rsqrt_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda(float)#1}"
PAIRS = [
    (
        "copy_coalesced(const float4 *, float4 *, unsigned long)",
        "copy_coalesced(float4 const*, float4*, unsigned long)",
        "copy_coalesced",
    ),
    (
        "void at::vectorized_elementwise_kernel<8, at::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, "
        "AddFunctor<float>>, std::array<char *, 3>>(int, T2, T3)",
        f"void at::native::vectorized_elementwise_kernel<8, {ADD}, std::array<char*, 3ul> >"
        f"(int, {ADD}, std::array<char*, 3ul>)",
        "vectorized_elementwise_kernel",
    ),
    (
        "void at::vectorized_elementwise_kernel<4, at::rsqrt_kernel_cuda(at::TensorIteratorBase &)::"
        "[lambda() (instance 2)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, 2>>"
        "(int, T2, T3)",
        f"void at::native::vectorized_elementwise_kernel<4, {RSQRT}, std::array<char*, 2ul> >"
        f"(int, {RSQRT}, std::array<char*, 2ul>)",
        "vectorized_elementwise_kernel",
    ),
    (
        "void at::<unnamed>::CatArrayBatchedCopy<at::<unnamed>::OpaqueType<2>, unsigned int, 4, 64, 64>(T1 *, int, T2)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::"
        "OpaqueType<2u>, unsigned int, 4, 64, 64>"
        "(at::native::(anonymous namespace)::OpaqueType<2u>*, int, unsigned int)",
        "CatArrayBatchedCopy",
    ),
    ("void scan<1, 0>(const T1 *)", "void scan<true, false>(int const*)", "scan"),
    ("nvjet_sm90_tst_64x8_TNT", "nvjet_sm90_tst_64x8_TNT", "nvjet_sm90_tst_64x8_TNT"),
]


@pytest.mark.parametrize(("ncu", "runtime", "bare"), PAIRS, ids=[p[2] for p in PAIRS])
def test_both_spellings_are_the_same_kernel(ncu, runtime, bare):
    assert kernel_key(ncu) == kernel_key(runtime)
    assert function_name(ncu) == function_name(runtime) == bare
    assert same_kernels([ncu], [runtime, "other(int)"]) == {ncu: runtime}


def test_different_kernels_stay_apart(tmp_path):
    launches, _ = textreport.read(unpacked("llm_raw.csv", tmp_path))
    names = {launch.name for launch in launches}
    keys = {kernel_key(name) for name in names}
    assert len(keys) == len(names) == 19
    for one, other in [
        ("f<1>(int)", "f<2>(int)"),
        ("a(x)::{lambda(int)#1}", "b(x)::{lambda(int)#1}"),
        ("a(x)::{lambda(int)#1}", "a(x)::{lambda(int)#2}"),
        ("f<float>(float)", "f<double>(double)"),
    ]:
        assert kernel_key(one) != kernel_key(other)


def test_an_equal_name_wins_and_an_ambiguous_one_joins_nothing():
    overloads = ["f(int)", "f(float)"]
    assert same_kernels(["f(float)"], overloads) == {"f(float)": "f(float)"}
    assert same_kernels(["f(double)"], overloads) == {}


def test_mangled_names_come_out_as_the_runtime_writes_them():
    assert demangle("_Z12copy_stridedPKfPfmm") == "copy_strided(float const*, float*, unsigned long, unsigned long)"
    assert demangle("nvjet_sm90") == "nvjet_sm90"


@given(st.text(alphabet="ab<>()[]{}:,*& 0123ul#~", max_size=200))
def test_any_text_has_a_key_that_is_its_own_key(text):
    assert isinstance(kernel_key(text), str)
    assert function_name(text) is None or function_name(text).isidentifier()


def test_a_name_of_a_megabyte_is_left_as_it_is():
    name = "f" + "(" * 1_000_000
    assert kernel_key(name) == name
