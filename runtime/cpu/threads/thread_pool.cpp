#include "cpu/threads/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "cpu/simd/float_environment.h"

namespace steelyard {
namespace {

class Job {
public:
  Job(int64_t tasks, int64_t grain, Task task, const void *context)
      : tasks_(tasks), grain_(grain), task_(task), context_(context) {}

  // Takes ranges until none is left.
  void work() noexcept {
    FloatEnvironment environment;
    try {
      for (;;) {
        int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
        if (begin >= tasks_)
          return;
        task_(context_, begin, std::min(begin + grain_, tasks_));
      }
    } catch (...) {
      next_.store(tasks_, std::memory_order_relaxed);
      if (!failed_.test_and_set())
        failure_ = std::current_exception();
    }
  }

  void rethrow() const {
    if (failure_)
      std::rethrow_exception(failure_);
  }

private:
  const int64_t tasks_, grain_;
  const Task task_;
  const void *const context_;
  std::atomic<int64_t> next_{0};
  std::atomic_flag failed_ = ATOMIC_FLAG_INIT;
  std::exception_ptr failure_;
};

class Pool {
public:
  explicit Pool(Team team) : team_(team) {}

  // Runs the job with up to `helpers` workers; false if the pool is taken. A
  // team always comes whole: it would let go of threads that are not called.
  bool run(Job &job, int helpers, int threads) {
    if (taken_.test_and_set(std::memory_order_acquire))
      return false;
    if (team_) {
      team_([](void *job) { static_cast<Job *>(job)->work(); }, &job, threads);
    } else {
      open(job, helpers);
      job.work();
      close();
    }
    taken_.clear(std::memory_order_release);
    return true;
  }

private:
  void open(Job &job, int helpers) {
    {
      std::lock_guard lock(mutex_);
      grow(helpers);
      job_ = &job;
      seats_ = std::min(helpers, workers_);
    }
    wake_.notify_all();
  }

  // Waits for the workers that joined, not for those that slept through it.
  void close() {
    std::unique_lock lock(mutex_);
    job_ = nullptr;
    idle_.wait(lock, [this] { return active_ == 0; });
  }

  void grow(int helpers) {
    try {
      for (; workers_ < helpers; ++workers_)
        std::thread(&Pool::serve, this).detach();
    } catch (const std::exception &) {
      // Fewer threads than asked for is slower, not wrong.
    }
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return job_ && seats_ > 0; });
      --seats_;
      ++active_;
      Job *job = job_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--active_ == 0)
        idle_.notify_one();
    }
  }

  const Team team_;
  std::atomic_flag taken_ = ATOMIC_FLAG_INIT;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  Job *job_ = nullptr;
  int workers_ = 0, seats_ = 0, active_ = 0;
};

// Never destroyed: workers may outlive static destructors, and a forked child
// must leave its parent's copy alone.
Pool *pool = nullptr;
Team (*find_team)() = nullptr;

Pool &shared_pool() {
  static std::once_flag once;
  std::call_once(once, [] {
    pool = new Pool(find_team ? find_team() : nullptr);
    // The threads of a team are not there after a fork.
    pthread_atfork(nullptr, nullptr, [] { pool = new Pool(nullptr); });
  });
  return *pool;
}

} // namespace

void set_team_finder(Team (*find)()) { find_team = find; }

void parallel_for(int64_t tasks, int64_t grain, int threads, Task task,
                  const void *context) {
  if (tasks <= 0)
    return;
  grain = std::max<int64_t>(grain, 1);
  int64_t ranges = (tasks + grain - 1) / grain;
  int helpers = static_cast<int>(std::min<int64_t>(threads, ranges)) - 1;
  Job job(tasks, grain, task, context);
  if (helpers <= 0 || !shared_pool().run(job, helpers, threads))
    job.work();
  job.rethrow();
}

} // namespace steelyard
