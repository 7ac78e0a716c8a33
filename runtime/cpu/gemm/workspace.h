// Memory that each thread keeps between products: to get fresh pages costs more
// than a small product.
#pragma once

#include <cstddef>

namespace steelyard {

enum class WorkspaceUse { rows, accumulators, columns, attention, partials };
inline constexpr int kWorkspaceUses = 5;

// At least `size` bytes, 64-byte aligned, of the calling thread; good until it
// asks again for the same use. Throws std::bad_alloc.
void *thread_workspace(WorkspaceUse use, size_t size);

} // namespace steelyard
