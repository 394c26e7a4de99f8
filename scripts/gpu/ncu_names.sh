#!/bin/sh
# Which launches ncu measures of three instances of a template, two asked for of each: by each of its name bases.
#     scripts/gpu/ncu_names.sh
# Needs nvcc and ncu. ncu 2025.3.1: by "function" two of all three together, by the others two of each.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/names.cu" <<'EOF'
template <int N> __global__ void fill(float *to) { to[blockIdx.x * blockDim.x + threadIdx.x] = N; }
int main() {
    float *to;
    cudaMalloc(&to, 64 * 128 * sizeof(float));
    for (int i = 0; i < 6; i++) {
        fill<1><<<64, 128>>>(to);
        fill<2><<<64, 128>>>(to);
        fill<3><<<64, 128>>>(to);
    }
    return cudaDeviceSynchronize();
}
EOF
nvcc -o "$work/names" "$work/names.cu"
for base in function demangled mangled; do
    timeout 60 ncu --csv --print-kernel-base mangled --metrics gpu__time_duration.sum --filter-mode per-launch-config \
        --launch-skip 1 --launch-count 2 --kernel-name-base $base "$work/names" >"$work/$base.csv"
    echo "$base: $(grep -o '_Z4fillILi[0-9]E' "$work/$base.csv" | sort | uniq -c | tr -s ' \n' ' ')"
done
