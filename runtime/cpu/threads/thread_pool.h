// One pool of worker threads for every kernel.
//
// A kernel is split into tasks by its shape alone, so its bytes do not depend
// on how many threads share them. The calling thread always works too; helpers
// are borrowed only while the pool is free, so concurrent callers never
// oversubscribe the machine: the second one runs alone. After a fork the child
// starts a new pool on first use.
//
// Where a process has a team of threads already, helpers come from there.
#pragma once

#include <cstdint>

namespace steelyard {

using TeamMember = void (*)(void *context);
// Calls `member(context)` on so many threads, the calling one among them.
using Team = void (*)(TeamMember member, void *context, int threads);

// Lets the pool look for a team, once, when it first needs one; a fork of the
// process leaves the team behind.
void set_team_finder(Team (*find)());

using Task = void (*)(const void *context, int64_t begin, int64_t end);

// Calls `task(context, begin, end)` until [0, tasks) is covered by ranges of at
// most `grain`, on at most `threads` threads. Rethrows the first exception.
void parallel_for(int64_t tasks, int64_t grain, int threads, Task task,
                  const void *context);

// The same for a callable `f(begin, end)`.
template <class F>
void parallel_for(int64_t tasks, int64_t grain, int threads, const F &f) {
  Task call = [](const void *context, int64_t begin, int64_t end) {
    (*static_cast<const F *>(context))(begin, end);
  };
  parallel_for(tasks, grain, threads, call, &f);
}

} // namespace steelyard
