#include "cpu/gemm/workspace.h"

#include <cstdlib>
#include <memory>
#include <new>

namespace steelyard {
namespace {

struct Free {
  void operator()(void *memory) const { std::free(memory); }
};

struct Workspace {
  std::unique_ptr<void, Free> memory;
  size_t size = 0;
};

} // namespace

void *thread_workspace(WorkspaceUse use, size_t size) {
  thread_local Workspace workspaces[kWorkspaceUses];
  Workspace &workspace = workspaces[static_cast<int>(use)];
  if (workspace.size < size) {
    const size_t rounded = (size + 63) / 64 * 64;
    workspace.size = 0;
    workspace.memory.reset();
    workspace.memory.reset(std::aligned_alloc(64, rounded));
    if (!workspace.memory)
      throw std::bad_alloc();
    workspace.size = rounded;
  }
  return workspace.memory.get();
}

} // namespace steelyard
