/* One pass of a metric over many tensors: every number is read once and written once.
 *
 * Plain C without torch or Python headers, called through ctypes with arrays of addresses.
 *
 *   d = θ(g − m),  m += d,  u = m + d,  and then
 *   euclidean:  w = κw − lr·u
 *   diagonal:   v = β₂v + (1−β₂)g²,  w = κw − lr·u/(√(v/(1−β₂ᵗ)) + ε)
 *
 * with κ = 1 − lr·weight_decay. Step counts live in tensors, as on any device.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

/* The widest vectors the machine has, chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

/* Fewer elements than this per thread do not pay for a second one. */
#define ELEMENTS_PER_THREAD 65536
#define MAX_RANGES 256

/* Elements that a thread takes at a time. */
#define CHUNK 65536

#define LINE_BYTES 64 /* of a cache */

/* The euclidean metric has no use for beta2 and eps. */
typedef struct {
    double lr, theta, keep, sign, beta2, eps;
} settings;

/* Elements that no thread has taken yet, counted over all tensors; in a cache line of its own. */
typedef struct {
    _Alignas(LINE_BYTES) atomic_llong next;
    int64_t last;
} range;

typedef struct job {
    /* Takes the step on elements from first to last of the i-th tensor. */
    void (*step)(const struct job *, int64_t i, int64_t first, int64_t last);
    const int64_t *sizes;
    void *const *w, *const *g, *const *m, *const *v;
    const double *corrections;
    settings s;
    atomic_int arrived; /* threads */
    int count;
    range ranges[MAX_RANGES];
} job;

/* GOMP_parallel: call work on so many threads, of which the caller is one. Torch's own threads wait
 * for their next task at full speed, and threads started here would have to share their cores. */
typedef void (*team)(void (*work)(void *), void *argument, unsigned threads, unsigned flags);

/* Round down, so that no two threads write to one cache line. */
static int64_t cut(int64_t element) {
    return element & ~(int64_t)(LINE_BYTES / sizeof(float) - 1);
}

/* Do what is left of a range. */
static void drain(job *a, range *r) {
    int64_t i = 0, before = 0, first; /* elements before the i-th tensor */
    while ((first = atomic_fetch_add(&r->next, CHUNK)) < r->last) {
        const int64_t last = first + CHUNK < r->last ? first + CHUNK : r->last;
        while (before + a->sizes[i] <= first)
            before += a->sizes[i++];
        for (int64_t k = i, start = before; start < last; start += a->sizes[k++]) {
            const int64_t from = first > start ? cut(first - start) : 0;
            const int64_t to = last - start < a->sizes[k] ? cut(last - start) : a->sizes[k];
            if (from < to)
                a->step(a, k, from, to);
        }
    }
}

/* A thread has a range of its own, since memory is fastest in long runs, and then helps with the
 * others: one that comes late, or never, holds up nobody. */
static void work(void *argument) {
    job *a = argument;
    const int own = atomic_fetch_add(&a->arrived, 1);
    for (int k = 0; k < a->count; k++)
        drain(a, &a->ranges[(own + k) % a->count]);
}

static void *work_as_thread(void *argument) {
    work(argument);
    return NULL;
}

static void run(job *a, int64_t total, int threads, team parallel) {
    const int64_t worth = total / ELEMENTS_PER_THREAD;
    if (worth < 2 || threads < 2)
        threads = 1;
    else if (!parallel && threads > worth) /* but a smaller team would end torch's other threads */
        threads = (int)worth;
    a->count = threads < MAX_RANGES ? threads : MAX_RANGES;
    for (int k = 0; k < a->count; k++) {
        a->ranges[k].next = total * k / a->count;
        a->ranges[k].last = total * (k + 1) / a->count;
    }
    if (threads > 1 && parallel) {
        parallel(work, a, (unsigned)threads, 0);
        return;
    }
    pthread_t workers[MAX_RANGES];
    int started = 0;
    while (started < a->count - 1 && !pthread_create(&workers[started], NULL, work_as_thread, a))
        started++;
    work(a);
    while (started > 0)
        pthread_join(workers[--started], NULL);
}

/* The equations, for the i-th element. */
#define DUAL_STEP(T, gradient)                                                                     \
    const T d = theta * (gradient - m[i]);                                                         \
    const T next = m[i] + d;                                                                       \
    m[i] = next;

#define EUCLIDEAN(T)                                                                               \
    {                                                                                              \
        const T gradient = sign * g[i];                                                            \
        DUAL_STEP(T, gradient)                                                                     \
        w[i] = keep * w[i] - lr * (next + d);                                                      \
    }

/* Larger gradients count as the limit, so that their squares are finite. Infinity and NaN, for which
 * 0 * given is NaN, are not hidden. */
#define DIAGONAL(T, SQRT)                                                                          \
    {                                                                                              \
        const T given = sign * g[i];                                                               \
        const T upper = limit < given ? limit : given;                                             \
        const T gradient = (-limit > upper ? -limit : upper) + 0 * given;                          \
        DUAL_STEP(T, gradient)                                                                     \
        const T moment = beta2 * v[i] + rest * gradient * gradient;                                \
        v[i] = moment;                                                                             \
        w[i] = keep * w[i] - lr * (next + d) / (SQRT(moment) * correction + eps);                  \
    }

static int64_t sum(int64_t count, const int64_t *sizes) {
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++)
        total += sizes[i];
    return total;
}

/* What is exported takes addresses of tensors whose sizes are those of the parameters; where
 * parallel is NULL it starts threads itself. */
#define DEFINE_EUCLIDEAN(T, NAME)                                                                  \
    WIDE static void NAME##_loop(int64_t n, T *restrict w, const T *restrict g, T *restrict m,     \
                                 settings s) {                                                     \
        const T lr = (T)s.lr, theta = (T)s.theta, keep = (T)s.keep, sign = (T)s.sign;              \
        for (int64_t i = 0; i < n; i++)                                                            \
            EUCLIDEAN(T)                                                                           \
    }                                                                                              \
                                                                                                   \
    static void NAME##_step(const job *a, int64_t i, int64_t first, int64_t last) {                \
        NAME##_loop(last - first, (T *)a->w[i] + first, (const T *)a->g[i] + first,                \
                    (T *)a->m[i] + first, a->s);                                                   \
    }                                                                                              \
                                                                                                   \
    void NAME(int64_t count, const int64_t *sizes, void *const *w, void *const *g, void *const *m, \
              double lr, double theta, double keep, double sign, int threads, team parallel) {     \
        job a = {.step = NAME##_step, .sizes = sizes, .w = w, .g = g, .m = m,                      \
                 .s = {.lr = lr, .theta = theta, .keep = keep, .sign = sign}};                     \
        run(&a, sum(count, sizes), threads, parallel);                                             \
    }

#define DEFINE_DIAGONAL(T, NAME, SQRT, LIMIT)                                                      \
    WIDE static void NAME##_loop(int64_t n, T *restrict w, const T *restrict g, T *restrict m,     \
                                 T *restrict v, T correction, settings s) {                        \
        const T lr = (T)s.lr, theta = (T)s.theta, keep = (T)s.keep, sign = (T)s.sign;              \
        const T beta2 = (T)s.beta2, rest = (T)(1 - s.beta2), eps = (T)s.eps, limit = LIMIT;        \
        for (int64_t i = 0; i < n; i++)                                                            \
            DIAGONAL(T, SQRT)                                                                      \
    }                                                                                              \
                                                                                                   \
    static void NAME##_step(const job *a, int64_t i, int64_t first, int64_t last) {                \
        NAME##_loop(last - first, (T *)a->w[i] + first, (const T *)a->g[i] + first,                \
                    (T *)a->m[i] + first, (T *)a->v[i] + first, (T)a->corrections[i], a->s);       \
    }                                                                                              \
                                                                                                   \
    /* Returns 0, or -1 when memory for the corrections cannot be had. */                          \
    int NAME(int64_t count, const int64_t *sizes, void *const *w, void *const *g, void *const *m,  \
             double lr, double theta, double keep, double sign, int threads, team parallel,        \
             void *const *v, T *const *steps, double beta2, double eps) {                          \
        double *corrections = malloc((size_t)(count ? count : 1) * sizeof(double));                \
        if (!corrections)                                                                          \
            return -1;                                                                             \
        for (int64_t i = 0; i < count; i++) {                                                      \
            *steps[i] += 1;                                                                        \
            /* Tensors of one model mostly share a step count. */                                  \
            if (i > 0 && *steps[i] == *steps[i - 1])                                               \
                corrections[i] = corrections[i - 1];                                               \
            else                                                                                   \
                corrections[i] = 1 / sqrt(1 - pow(beta2, (double)*steps[i]));                      \
        }                                                                                          \
        job a = {.step = NAME##_step, .sizes = sizes, .w = w, .g = g, .m = m, .v = v,              \
                 .corrections = corrections, .s = {lr, theta, keep, sign, beta2, eps}};            \
        run(&a, sum(count, sizes), threads, parallel);                                             \
        free(corrections);                                                                         \
        return 0;                                                                                  \
    }

DEFINE_EUCLIDEAN(float, badm_euclidean_step_float32)
DEFINE_EUCLIDEAN(double, badm_euclidean_step_float64)
DEFINE_DIAGONAL(float, badm_limited_diagonal_step_float32, sqrtf, 0x1p63f)
DEFINE_DIAGONAL(double, badm_limited_diagonal_step_float64, sqrt, 0x1p511)
