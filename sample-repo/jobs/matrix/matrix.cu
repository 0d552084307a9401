/* Adds and multiplies two matrices of N x N and checks the results. With nvcc it runs on a GPU; `cc -x c` makes a
 * program of it for the CPU. */
#include <stdio.h>
#include <stdlib.h>

#ifdef __CUDACC__
#define KERNEL __global__
#else
#define KERNEL
#endif

/* One element of both results. */
#ifdef __CUDACC__
__device__
#endif
static void element(const float *a, const float *b, float *sum, float *product, int n, int row, int column) {
    float total = 0;
    for (int k = 0; k < n; k++)
        total += a[row * n + k] * b[k * n + column];
    sum[row * n + column] = a[row * n + column] + b[row * n + column];
    product[row * n + column] = total;
}

KERNEL static void both(const float *a, const float *b, float *sum, float *product, int n) {
#ifdef __CUDACC__
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < n && column < n)
        element(a, b, sum, product, n, row, column);
#else
    for (int row = 0; row < n; row++)
        for (int column = 0; column < n; column++)
            element(a, b, sum, product, n, row, column);
#endif
}

static float *matrix(int n) {
#ifdef __CUDACC__
    float *cells = NULL;
    if (cudaMallocManaged(&cells, sizeof *cells * n * n) != cudaSuccess)
        cells = NULL;
#else
    float *cells = (float *)malloc(sizeof *cells * n * n);
#endif
    if (!cells) {
        fprintf(stderr, "out of memory, or no GPU\n");
        exit(1);
    }
    return cells;
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 256;
    if (n < 1 || n > 2048) {
        fprintf(stderr, "usage: matrix N, with N from 1 to 2048\n");
        return 2;
    }
    float *a = matrix(n), *b = matrix(n), *sum = matrix(n), *product = matrix(n);
    /* Every row of a is 1, 2, 3, ... and b is 2 everywhere: each product is n (n + 1). */
    for (int i = 0; i < n * n; i++) {
        a[i] = (float)(i % n + 1);
        b[i] = 2;
    }
#ifdef __CUDACC__
    dim3 threads(16, 16), blocks((n + 15) / 16, (n + 15) / 16);
    both<<<blocks, threads>>>(a, b, sum, product, n);
    if (cudaDeviceSynchronize() != cudaSuccess) {
        fprintf(stderr, "the GPU failed: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 1;
    }
    const char *where = "GPU";
#else
    both(a, b, sum, product, n);
    const char *where = "CPU";
#endif
    for (int i = 0; i < n * n; i++) {
        float expected = (float)n * (float)(n + 1);
        if (sum[i] != a[i] + 2 || product[i] < expected * 0.999f || product[i] > expected * 1.001f) {
            fprintf(stderr, "wrong at %d: sum %f, product %f\n", i, sum[i], product[i]);
            return 1;
        }
    }
    printf("%d x %d on the %s: added and multiplied, all right\n", n, n, where);
    return 0;
}
