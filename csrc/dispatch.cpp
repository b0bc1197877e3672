// Chooses, when the library is loaded, the widest level that this processor runs.

#include "edge_attention.h"
#include "jets.h"

#include <cstdlib>
#include <cstring>

#define PK_DECLARE(LEVEL)                                                                              \
    namespace LEVEL {                                                                                  \
    int forward(const pk_problem *, void *, void *, void *);                                           \
    int backward(const pk_problem *, const pk_gradients *);                                            \
    int read_rows(const pk_problem *, void *);                                                         \
    int second_order(const pk_jet_problem *);                                                          \
    int taylor(const pk_jet_problem *);                                                                \
    }

#if defined(PK_X86)
PK_DECLARE(pk_avx512)
PK_DECLARE(pk_avx2)
#endif
PK_DECLARE(pk_baseline)

namespace {

struct Level {
    const char *name;
    bool runs;
    decltype(&pk_baseline::forward) forward;
    decltype(&pk_baseline::backward) backward;
    decltype(&pk_baseline::read_rows) read_rows;
    decltype(&pk_baseline::second_order) second_order;
    decltype(&pk_baseline::taylor) taylor;
};

#if defined(__aarch64__)
const char *const kBaseline = "neon";
#else
const char *const kBaseline = "baseline";
#endif

Level choose() {
    const Level levels[] = {
#if defined(PK_X86)
        {"avx512",
         __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"),
         pk_avx512::forward, pk_avx512::backward, pk_avx512::read_rows, pk_avx512::second_order,
         pk_avx512::taylor},
        {"avx2",
         __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"),
         pk_avx2::forward, pk_avx2::backward, pk_avx2::read_rows, pk_avx2::second_order,
         pk_avx2::taylor},
#endif
        {kBaseline, true, pk_baseline::forward, pk_baseline::backward, pk_baseline::read_rows,
         pk_baseline::second_order, pk_baseline::taylor},
    };
    const char *wanted = std::getenv("PYG_KPNN_SIMD"); // to test a level below the best one
    for (const Level &level : levels)
        if (level.runs && (!wanted || std::strcmp(wanted, level.name) == 0)) return level;
    for (const Level &level : levels)
        if (level.runs) return level;
    return levels[0];
}

const Level kLevel = choose();

} // namespace

extern "C" {

int pk_forward(const pk_problem *problem, void *mixed, void *norm, void *weights) {
    return kLevel.forward(problem, mixed, norm, weights);
}
int pk_backward(const pk_problem *problem, const pk_gradients *gradients) {
    return kLevel.backward(problem, gradients);
}
int pk_read_rows(const pk_problem *problem, void *sums) { return kLevel.read_rows(problem, sums); }
int pk_second_order(const pk_jet_problem *problem) { return kLevel.second_order(problem); }
int pk_taylor(const pk_jet_problem *problem) { return kLevel.taylor(problem); }
const char *pk_level(void) { return kLevel.name; }

}
