/* Multiplies two matrices of N x N and prints one number that depends on all of them. */
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 256;
    if (n < 1 || n > 4096) {
        fprintf(stderr, "usage: matrix N, with N from 1 to 4096\n");
        return 2;
    }
    double *a = malloc(sizeof *a * n * n), *b = malloc(sizeof *b * n * n);
    if (!a || !b) {
        fprintf(stderr, "out of memory\n");
        return 1;
    }
    for (int i = 0; i < n * n; i++) {
        a[i] = i % 7;
        b[i] = i % 11;
    }
    double sum = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++)
            for (int j = 0; j < n; j++)
                sum += a[i * n + k] * b[k * n + j];
    printf("%.0f\n", sum);
    free(a);
    free(b);
    return 0;
}
