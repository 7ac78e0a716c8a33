#include "cpu/threads/openmp_team.h"

#include <dlfcn.h>

namespace steelyard {
namespace {

using Parallel = void (*)(void (*member)(void *), void *context,
                          unsigned threads, unsigned flags);
Parallel parallel = nullptr;

void run_team(TeamMember member, void *context, int threads) {
  parallel(member, context, static_cast<unsigned>(threads), 0);
}

} // namespace

Team find_openmp_team() {
#if defined(__SANITIZE_THREAD__)
  return nullptr; // ThreadSanitizer cannot see how OpenMP's threads wait
#endif
  parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  return parallel ? run_team : nullptr;
}

} // namespace steelyard
