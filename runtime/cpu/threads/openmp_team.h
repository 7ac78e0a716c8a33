// The threads that torch computes on, for kernels too: two pools would wait for
// each other's threads, which spin for a while after their work.
#pragma once

#include "cpu/threads/thread_pool.h"

namespace steelyard {

// The OpenMP threads of this process, through the entry point that programs
// compiled by GCC call; null if torch, or whatever brings OpenMP, is not there.
Team find_openmp_team();

} // namespace steelyard
