// Kernels with one planted limiter each, and healthy controls: the ground truth of the rules on measured kernels.
// Nine configurations of eight kernels, four of them in one shape, are launched `rounds` times.
// nvcc -O2 -arch=sm_90 -o ncu_planted ncu_planted.cu; ./ncu_planted [rounds]
#include <cstdio>
#include <cstdlib>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>

#define CHECK(call)                                                                      \
    do {                                                                                 \
        cudaError_t status = (call);                                                     \
        if (status != cudaSuccess) {                                                     \
            fprintf(stderr, "%s at line %d\n", cudaGetErrorString(status), __LINE__);    \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

// tensor-core-unused: C = A * B in half precision, one element a thread, on the ordinary cores.
__global__ void naive_hgemm(const __half *a, const __half *b, __half *c, int n)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    __half2 sum = __float2half2_rn(0.f);
    for (int k = 0; k < n; k += 2) {
        __half2 left = *reinterpret_cast<const __half2 *>(a + (size_t)row * n + k);
        __half2 right = __halves2half2(b[(size_t)k * n + column], b[(size_t)(k + 1) * n + column]);
        sum = __hfma2(left, right, sum);
    }
    c[(size_t)row * n + column] = __hadd(__low2half(sum), __high2half(sum));
}

// Control: the same multiply on the tensor cores, one 16 x 16 tile a warp.
__global__ void tensor_hgemm(const __half *a, const __half *b, __half *c, int n)
{
    using namespace nvcuda::wmma;
    int row = (blockIdx.y * blockDim.y + threadIdx.y) * 16;
    int column = blockIdx.x * 16;
    fragment<accumulator, 16, 16, 16, __half> sum;
    fill_fragment(sum, __float2half(0.f));
    for (int k = 0; k < n; k += 16) {
        fragment<matrix_a, 16, 16, 16, __half, row_major> left;
        fragment<matrix_b, 16, 16, 16, __half, row_major> right;
        load_matrix_sync(left, a + (size_t)row * n + k, n);
        load_matrix_sync(right, b + (size_t)k * n + column, n);
        mma_sync(sum, left, right, sum);
    }
    store_matrix_sync(c + (size_t)row * n + column, sum, n, mem_row_major);
}

// Each warp walks `steps` of `count` (a power of 2) lines of 128 bytes in an order that depends on what it read: coalesced, one load in flight.
__device__ unsigned walk(const unsigned *lines, size_t count, int steps)
{
    size_t warp = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    unsigned long long state = warp * 0x9E3779B97F4A7C15ull + 1, sum = 0;
    for (int step = 0; step < steps; step++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        size_t line = (size_t)(state >> 33) & (count - 1);
        unsigned value = lines[line * 32 + (threadIdx.x & 31)];
        sum += value;
        state += __shfl_sync(0xffffffffu, value, 0);
    }
    return (unsigned)sum;
}

// l2-misses: the lines are spread over far more than L2 holds.
__global__ void random_gather(const unsigned *lines, size_t count, int steps, unsigned *out)
{
    unsigned sum = walk(lines, count, steps);
    if (sum == 12345u) out[0] = sum;
}

// Control: the same walk over lines that fit L2. It still waits for each load, so it is latency-bound, but L2 hits.
__global__ void cached_gather(const unsigned *lines, size_t count, int steps, unsigned *out)
{
    unsigned sum = walk(lines, count, steps);
    if (sum == 12345u) out[0] = sum;
}

// Control: a stream through DRAM with neighbouring threads at neighbouring addresses.
__global__ void stream_copy(const float4 *from, float4 *to, size_t count)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = from[i];
}

// uncoalesced-access: each thread reads its own row of 1 KiB.
__global__ void row_sums(const float *rows, float *sums, size_t count)
{
    size_t row = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int i = 0; i < 256; i += 32) sum += rows[row * 256 + i];
    if (row < count) sums[row] = sum;
}

// bank-conflict: all lanes of a warp hit one bank of shared memory.
__global__ void column_walk(float *out, int steps)
{
    __shared__ float tile[32 * 128];
    for (int i = threadIdx.x; i < 32 * 128; i += blockDim.x) tile[i] = i;
    __syncthreads();
    float sum = 0;
    for (int step = 0; step < steps; step++) sum += tile[((threadIdx.x & 31) * 32 + step) & 4095];
    if (sum == 12345.f) out[0] = sum;
}

// Control: the same with a row of 33 words, so that each lane has its own bank.
__global__ void padded_walk(float *out, int steps)
{
    __shared__ float tile[32 * 128];
    for (int i = threadIdx.x; i < 32 * 128; i += blockDim.x) tile[i] = i;
    __syncthreads();
    float sum = 0;
    for (int step = 0; step < steps; step++) sum += tile[((threadIdx.x & 31) * 33 + step) & 4095];
    if (sum == 12345.f) out[0] = sum;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 3;
    const int n = 2048;
    const size_t bytes = 2ull << 30, lines = bytes / 128, few = (8ull << 20) / 128;
    __half *a, *b, *c;
    unsigned *memory, *out;
    CHECK(cudaMalloc(&a, (size_t)n * n * 2));
    CHECK(cudaMalloc(&b, (size_t)n * n * 2));
    CHECK(cudaMalloc(&c, (size_t)n * n * 2));
    CHECK(cudaMalloc(&memory, bytes));
    CHECK(cudaMalloc(&out, 64 << 20));
    CHECK(cudaMemset(a, 0, (size_t)n * n * 2));
    CHECK(cudaMemset(b, 0, (size_t)n * n * 2));
    CHECK(cudaMemset(memory, 1, bytes));
    for (int round = 0; round < rounds; round++) {
        naive_hgemm<<<dim3(n / 32, n / 8), dim3(32, 8)>>>(a, b, c, n);
        tensor_hgemm<<<dim3(n / 16, n / 16 / 4), dim3(32, 4)>>>(a, b, c, n);
        random_gather<<<132 * 8, 256>>>(memory, lines, 200, out);
        cached_gather<<<132 * 8, 256>>>(memory, few, 200, out);
        stream_copy<<<(32 << 20) / 256, 256>>>((const float4 *)memory, (float4 *)(memory + bytes / 8), 32 << 20);
        row_sums<<<(2 << 20) / 256, 256>>>((const float *)memory, (float *)out, 2 << 20);
        column_walk<<<132 * 8, 256>>>((float *)out, 5000);
        padded_walk<<<132 * 8, 256>>>((float *)out, 5000);
        padded_walk<<<132 * 4, 256>>>((float *)out, 5000);  // a second configuration
        CHECK(cudaGetLastError());
    }
    CHECK(cudaDeviceSynchronize());
    puts("done");
}
