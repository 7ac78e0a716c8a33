#include "cpu/attention/each_few.h"
#include "cpu/attention/heads.h"
#include "cpu/attention/panels.h"
#include "cpu/gemm/workspace.h"

namespace steelyard::STEELYARD_ISA {

static_assert(kPanel % 8 == 0 && kBlockQueries % kPanel == 0);
static constexpr int64_t kPanels = kBlockQueries / kPanel;
// Read by every panel of a block while they are in cache.
static constexpr int64_t kBlockKeys = 96;

// What one block of queries of one head needs.
class QueryBlock {
public:
  QueryBlock(const AttentionProblem &problem, int64_t batch, int64_t head,
             int64_t block)
      : problem_(problem), batch_(batch), head_(head),
        first_(block * kBlockQueries),
        queries_(smaller(kBlockQueries, problem.queries - first_)),
        columns_(whole_vectors(problem.head_size)) {
    const int64_t size = problem.head_size, keys = problem.keys;
    const int64_t key_head = head / group_size(problem);
    query_ = head_of(problem.query, batch, head, problem.queries, size);
    key_ = kept_keys(problem, batch, key_head);
    value_ = kept_values(problem, batch, key_head);
    if (problem.mask.data)
      mask_ = head_of(problem.mask, batch, head, problem.queries, keys);
    take_memory();
    fill_queries();
  }

  void run() {
    const int64_t end = visible_keys(problem_, first_ + queries_ - 1);
    const int64_t steps = (end + kBlockKeys - 1) / kBlockKeys;
    for (int64_t key = 0; key < end; key += kBlockKeys) {
      fetch_ahead(key / kBlockKeys, steps);
      const int64_t keys = smaller(kBlockKeys, end - key);
      const Rows key_rows = load_rows(key_, key, keys, true, key_memory_);
      const Rows value_rows = load_rows(value_, key, keys, true, value_memory_);
      for (int64_t panel = 0; panel * kPanel < queries_; ++panel)
        attend(panel, key, key_rows, value_rows);
    }
    for (int64_t i = 0; i < queries_; ++i)
      finish_query(problem_, batch_, head_, first_ + i, sums_ + i * columns_,
                   largest_[i], totals_[i]);
  }

private:
  void take_memory() {
    const int64_t size = problem_.head_size;
    const int64_t row = columns_ > kBlockKeys ? columns_ : kBlockKeys;
    const int64_t parts[] = {kPanels * size * kPanel,
                             kBlockKeys * kPanel,
                             kBlockKeys * columns_,
                             kBlockKeys * columns_,
                             kBlockQueries * columns_,
                             kBlockKeys * kPanel,
                             8 * row};
    float **const places[] = {&panels_,       &scores_, &key_memory_,
                              &value_memory_, &sums_,   &mask_panel_,
                              &buffer_};
    int64_t total = 0;
    for (int64_t part : parts)
      total += whole_line(part);
    float *memory = static_cast<float *>(
        thread_workspace(WorkspaceUse::attention, total * sizeof(float)));
    for (int i = 0; i < 7; ++i) {
      *places[i] = memory;
      memory += whole_line(parts[i]);
    }
  }

  static int64_t whole_line(int64_t floats) { return (floats + 15) / 16 * 16; }

  void fill_queries() {
    const int64_t size = problem_.head_size, n = size * kPanel;
    for (int64_t panel = 0; panel * kPanel < queries_; ++panel) {
      float *out = panels_ + panel * n;
      fill_panel(query_, first_ + panel * kPanel, rows_of(panel), 0, size,
                 buffer_, out);
      for (int64_t i = 0; i < n; ++i)
        out[i] *= problem_.scale;
    }
    std::memset(sums_, 0, kBlockQueries * columns_ * sizeof *sums_);
    for (int64_t i = 0; i < kBlockQueries; ++i) {
      largest_[i] = kNoScore;
      totals_[i] = 0.0f;
    }
  }

  // Brings near, one part with each block of keys, what is waited for
  // otherwise: where results go, and the queries of the task that comes next.
  void fetch_ahead(int64_t part, int64_t parts) const {
    const int64_t rows = (queries_ + parts - 1) / parts;
    const int64_t end = smaller(queries_, (part + 1) * rows);
    for (int64_t i = part * rows; i < end; ++i) {
      const int64_t query = first_ + i, next = query - kBlockQueries;
      fetch_row(problem_.out, query);
      if (next >= 0)
        fetch_row(problem_.query, next);
    }
  }

  void fetch_row(const HeadsView &x, int64_t token) const {
    const char *row = row_start(x, batch_, head_, token);
    const int64_t bytes = problem_.head_size * bytes_of(x);
    for (int64_t i = 0; i < bytes; i += 64)
      __builtin_prefetch(row + i, 0, 2); // not into the nearest cache
  }

  int64_t rows_of(int64_t panel) const {
    return smaller(kPanel, queries_ - panel * kPanel);
  }

  // Adds some keys to the sums of a panel.
  void attend(int64_t panel, int64_t key, Rows key_rows, Rows value_rows) {
    const int64_t rows = rows_of(panel), query = first_ + panel * kPanel;
    const int64_t keys = keys_before(query + rows, key);
    if (keys == 0)
      return;
    const int vectors = static_cast<int>(whole_vectors(rows) / kLanes);
    score(panel, query, vectors, key, keys, key_rows);
    if (problem_.mask.data)
      add_mask(query, rows, key, keys);
    alignas(64) float factors[kPanel];
    for (int v = 0; v < vectors; ++v) {
      const int64_t first = query + v * kLanes;
      const int64_t seen = smaller(keys_before(first + kLanes, key), keys);
      if (problem_.causal && key + seen > first + 1)
        hide_later_keys(v, first - key, seen);
      exponentiate(panel, v, seen, factors);
    }
    const Sight sight{problem_.causal ? query + 1 - key : keys, keys,
                      problem_.causal};
    each_few<kQueriesAtOnce>(rows, [&]<int n>(int64_t i) {
      multiply_values<n>(scores_ + i, value_rows.data, value_rows.stride,
                         sight.after(i), factors + i,
                         sums_ + (panel * kPanel + i) * columns_, columns_);
    });
  }

  // How many keys of the block at `key` query `end - 1` sees.
  int64_t keys_before(int64_t end, int64_t key) const {
    const int64_t seen = visible_keys(problem_, end - 1) - key;
    return seen < 0 ? 0 : smaller(kBlockKeys, seen);
  }

  // A vector whose queries all come before a key skips it.
  void score(int64_t panel, int64_t query, int vectors, int64_t key,
             int64_t keys, Rows key_rows) {
    const int64_t size = problem_.head_size;
    int64_t begin = 0;
    for (int v = 0; v < vectors; ++v) {
      int64_t end = keys;
      if (v + 1 < vectors)
        end = smaller(keys_before(query + (v + 1) * kLanes, key), keys);
      multiply_keys(vectors - v, panels_ + panel * size * kPanel + v * kLanes,
                    key_rows.data + begin * key_rows.stride, key_rows.stride,
                    size, end - begin, scores_ + begin * kPanel + v * kLanes);
      begin = end;
    }
  }

  void add_mask(int64_t query, int64_t rows, int64_t key, int64_t keys) {
    fill_panel(mask_, query, rows, key, keys, buffer_, mask_panel_);
    for (int64_t i = 0; i < keys * kPanel; ++i)
      scores_[i] += mask_panel_[i];
  }

  // Of vector v of a panel, whose first query sees keys up to `last`.
  void hide_later_keys(int v, int64_t last, int64_t keys) {
    WidestWords lanes;
    for (int i = 0; i < kLanes; ++i)
      lanes[i] = i;
    for (int64_t k = last + 1 > 0 ? last + 1 : 0; k < keys; ++k) {
      float *scores = scores_ + k * kPanel + v * kLanes;
      const WidestWords hidden =
          lanes < static_cast<int32_t>(smaller(k - last, kLanes));
      store(scores, hidden ? all_lanes(kNoScore) : load<WidestFloats>(scores));
    }
  }

  // Makes a weight of a score.
  static WidestFloats weigh(float *score, WidestFloats base) {
    const WidestFloats weight =
        exp_of_negative(load<WidestFloats>(score) - base);
    store(score, weight);
    return weight;
  }

  static WidestFloats largest_of(const float *scores, int64_t keys,
                                 WidestFloats before) {
    // By turns, so that none waits for another.
    constexpr int turns = 4;
    WidestFloats found[turns] = {before, before, before, before};
    int64_t k = 0;
    for (; k + turns <= keys; k += turns)
#pragma GCC unroll 4
      for (int i = 0; i < turns; ++i)
        found[i] =
            maximum(found[i], load<WidestFloats>(scores + (k + i) * kPanel));
    for (; k < keys; ++k)
      found[0] = maximum(found[0], load<WidestFloats>(scores + k * kPanel));
    return maximum(maximum(found[0], found[1]), maximum(found[2], found[3]));
  }

  // Makes weights of the scores of vector v of a panel, and the factors of what
  // was summed before.
  void exponentiate(int64_t panel, int v, int64_t keys, float *factors) {
    float *largest = largest_ + panel * kPanel + v * kLanes,
          *totals = totals_ + panel * kPanel + v * kLanes,
          *scores = scores_ + v * kLanes;
    const WidestFloats before = load<WidestFloats>(largest),
                       after = largest_of(scores, keys, before),
                       base = finite_maximum(after);
    // Keys by turns, so that neither sum waits for the other.
    WidestFloats total = {}, other = {};
    int64_t k = 0;
    for (; k + 2 <= keys; k += 2) {
      total += weigh(scores + k * kPanel, base);
      other += weigh(scores + (k + 1) * kPanel, base);
    }
    if (k < keys)
      total += weigh(scores + k * kPanel, base);
    const WidestFloats factor = exp_of_negative(before - base);
    store(factors + v * kLanes, factor);
    store(largest, after);
    store(totals,
          multiply_add(load<WidestFloats>(totals), factor, total + other));
  }

  const AttentionProblem &problem_;
  const int64_t batch_, head_, first_, queries_;
  const int64_t columns_; // of a row of values and of sums: whole vectors
  Matrix query_{}, mask_{};
  KeptHead key_{}, value_{};
  float *panels_, *scores_, *key_memory_, *value_memory_, *sums_, *mask_panel_,
      *buffer_;
  alignas(64) float largest_[kBlockQueries];
  alignas(64) float totals_[kBlockQueries];
};

void attend_blocks(const AttentionCall &call, int64_t begin, int64_t end) {
  const AttentionProblem &problem = call.problem;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t head = task / call.splits;
    // The last blocks, which see most keys if causal, are not left for last.
    const int64_t block = call.splits - 1 - task % call.splits;
    QueryBlock(problem, head / problem.heads, head % problem.heads, block)
        .run();
  }
}

} // namespace steelyard::STEELYARD_ISA
