/* One pass of the diagonal metric over many tensors: every number is read once and written once.
 *
 * Plain C without torch or Python headers, called through ctypes with arrays of addresses.
 *
 *   d = θ(g − m),  m += d,  u = m + d,  v = β₂v + (1−β₂)g²,  w = κw − lr·u/(√(v/(1−β₂ᵗ)) + ε)
 *
 * with κ = 1 − lr·weight_decay. Step counts live in tensors, as on any device.
 */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    double lr, theta, beta2, eps, keep, sign;
} settings;

/* The widest vectors the machine has, chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

/* Fewer elements than this per thread do not pay for starting one. */
#define ELEMENTS_PER_THREAD 65536
#define MAX_THREADS 256

#define DEFINE(T, NAME, SQRT)                                                                      \
    typedef struct {                                                                               \
        int64_t count, first, last; /* tensors; range of elements, counted over all of them */    \
        const int64_t *sizes;                                                                      \
        T *const *w, *const *m, *const *v;                                                         \
        const T *const *g;                                                                         \
        const T *corrections;                                                                      \
        settings s;                                                                                \
    } NAME##_share;                                                                                \
                                                                                                   \
    WIDE static void NAME##_span(int64_t n, T *restrict w, const T *restrict g, T *restrict m,     \
                                 T *restrict v, T correction, settings s) {                        \
        const T lr = (T)s.lr, theta = (T)s.theta, beta2 = (T)s.beta2, eps = (T)s.eps;              \
        const T keep = (T)s.keep, sign = (T)s.sign, rest = (T)(1 - s.beta2);                       \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const T gradient = sign * g[i];                                                        \
            const T d = theta * (gradient - m[i]);                                                 \
            const T next = m[i] + d;                                                               \
            const T moment = beta2 * v[i] + rest * gradient * gradient;                            \
            m[i] = next;                                                                           \
            v[i] = moment;                                                                         \
            w[i] = keep * w[i] - lr * (next + d) / (SQRT(moment) * correction + eps);              \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static void *NAME##_work(void *argument) {                                                     \
        const NAME##_share *a = argument;                                                          \
        int64_t start = 0;                                                                         \
        for (int64_t i = 0; i < a->count && start < a->last; i++) {                                \
            const int64_t from = a->first > start ? a->first - start : 0;                          \
            const int64_t size = a->sizes[i];                                                      \
            const int64_t to = a->last - start < size ? a->last - start : size;                    \
            if (from < to)                                                                         \
                NAME##_span(to - from, a->w[i] + from, a->g[i] + from, a->m[i] + from,             \
                            a->v[i] + from, a->corrections[i], a->s);                              \
            start += size;                                                                         \
        }                                                                                          \
        return NULL;                                                                               \
    }                                                                                              \
                                                                                                   \
    /* Returns 0; -1 when memory for the corrections cannot be had; i + 1 when the sizes of the      \
       i-th gradient, dual or moment are not that of its parameter, and then nothing is touched. */ \
    int64_t NAME(int64_t count, const int64_t *sizes, const int64_t *sizes_g,                      \
                 const int64_t *sizes_m, const int64_t *sizes_v, T *const *w, const T *const *g,   \
                 T *const *m, T *const *v, T *const *steps, double lr, double theta, double beta2, \
                 double eps, double keep, double sign, int threads) {                              \
        for (int64_t i = 0; i < count; i++)                                                        \
            if (sizes_g[i] != sizes[i] || sizes_m[i] != sizes[i] || sizes_v[i] != sizes[i])        \
                return i + 1;                                                                      \
        T *corrections = malloc((size_t)(count ? count : 1) * sizeof(T));                          \
        if (!corrections)                                                                          \
            return -1;                                                                             \
        int64_t total = 0;                                                                         \
        for (int64_t i = 0; i < count; i++) {                                                      \
            *steps[i] += 1;                                                                        \
            total += sizes[i];                                                                     \
            /* Tensors of one model mostly share a step count. */                                  \
            if (i > 0 && *steps[i] == *steps[i - 1])                                               \
                corrections[i] = corrections[i - 1];                                               \
            else                                                                                   \
                corrections[i] = (T)(1 / sqrt(1 - pow(beta2, (double)*steps[i])));                 \
        }                                                                                          \
        const settings s = {lr, theta, beta2, eps, keep, sign};                                    \
        if (threads > MAX_THREADS)                                                                 \
            threads = MAX_THREADS;                                                                 \
        if (threads > total / ELEMENTS_PER_THREAD)                                                 \
            threads = (int)(total / ELEMENTS_PER_THREAD);                                          \
        if (threads < 1)                                                                           \
            threads = 1;                                                                           \
        NAME##_share shares[MAX_THREADS];                                                          \
        pthread_t workers[MAX_THREADS];                                                            \
        int started[MAX_THREADS];                                                                  \
        for (int k = threads - 1; k >= 0; k--) {                                                   \
            shares[k] = (NAME##_share){count, total * k / threads, total * (k + 1) / threads,      \
                                       sizes, w, m, v, g, corrections, s};                         \
            started[k] = k > 0 && !pthread_create(&workers[k], NULL, NAME##_work, &shares[k]);     \
            if (!started[k])                                                                       \
                NAME##_work(&shares[k]);                                                           \
        }                                                                                          \
        for (int k = 1; k < threads; k++)                                                          \
            if (started[k])                                                                        \
                pthread_join(workers[k], NULL);                                                    \
        free(corrections);                                                                         \
        return 0;                                                                                  \
    }

DEFINE(float, badm_diagonal_step_float32, sqrtf)
DEFINE(double, badm_diagonal_step_float64, sqrt)
