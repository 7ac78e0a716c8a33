#include "cpu/attention/heads.h"
#include "cpu/attention/panels.h"
#include "cpu/gemm/workspace.h"

namespace steelyard::STEELYARD_ISA {

static_assert(kPanel % 8 == 0 && kBlockQueries % kPanel == 0);
static constexpr int64_t kPanels = kBlockQueries / kPanel;
// Read by every panel of a block while they are in cache.
static constexpr int64_t kBlockKeys = 192;

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
    for (int64_t key = 0; key < end; key += kBlockKeys) {
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

  int64_t rows_of(int64_t panel) const {
    return smaller(kPanel, queries_ - panel * kPanel);
  }

  // Adds some keys to the sums of a panel.
  void attend(int64_t panel, int64_t key, Rows key_rows, Rows value_rows) {
    const int64_t rows = rows_of(panel), query = first_ + panel * kPanel;
    const int64_t seen = visible_keys(problem_, query + rows - 1) - key;
    const int64_t keys = smaller(kBlockKeys, seen);
    if (keys <= 0)
      return;
    const int64_t size = problem_.head_size;
    multiply_keys(panels_ + panel * size * kPanel, key_rows.data,
                  key_rows.stride, size, keys, scores_);
    if (problem_.mask.data)
      add_mask(query, rows, key, keys);
    if (problem_.causal && key + keys > query)
      hide_later_keys(query, key, keys);
    alignas(64) float factors[kPanel];
    exponentiate(panel, keys, factors);
    const Sight sight{problem_.causal ? query + 1 - key : keys, keys,
                      problem_.causal};
    int64_t i = 0;
    for (; i + kQueriesAtOnce <= rows; i += kQueriesAtOnce)
      multiply_values<kQueriesAtOnce>(
          scores_ + i, value_rows.data, value_rows.stride, sight.after(i),
          factors + i, sums_ + (panel * kPanel + i) * columns_, columns_);
    for (; i < rows; ++i)
      multiply_values<1>(scores_ + i, value_rows.data, value_rows.stride,
                         sight.after(i), factors + i,
                         sums_ + (panel * kPanel + i) * columns_, columns_);
  }

  void add_mask(int64_t query, int64_t rows, int64_t key, int64_t keys) {
    fill_panel(mask_, query, rows, key, keys, buffer_, mask_panel_);
    for (int64_t i = 0; i < keys * kPanel; ++i)
      scores_[i] += mask_panel_[i];
  }

  void hide_later_keys(int64_t query, int64_t key, int64_t keys) {
    for (int64_t k = query + 1 > key ? query + 1 - key : 0; k < keys; ++k) {
      const int64_t hidden = smaller(key + k - query, kPanel);
      for (int64_t lane = 0; lane < hidden; ++lane)
        scores_[k * kPanel + lane] = kNoScore;
    }
  }

  // Makes a weight of a score.
  static WidestFloats weigh(float *score, WidestFloats base) {
    const WidestFloats weight =
        exp_of_negative(load<WidestFloats>(score) - base);
    store(score, weight);
    return weight;
  }

  // Makes weights of scores, and the factors of what was summed before.
  void exponentiate(int64_t panel, int64_t keys, float *factors) {
    for (int v = 0; v < kPanelVectors; ++v) {
      float *largest = largest_ + panel * kPanel + v * kLanes,
            *totals = totals_ + panel * kPanel + v * kLanes,
            *scores = scores_ + v * kLanes;
      const WidestFloats before = load<WidestFloats>(largest);
      // Keys by turns, so that neither sum waits for the other.
      WidestFloats even = before, odd = before;
      int64_t k = 0;
      for (; k + 2 <= keys; k += 2) {
        even = maximum(even, load<WidestFloats>(scores + k * kPanel));
        odd = maximum(odd, load<WidestFloats>(scores + (k + 1) * kPanel));
      }
      if (k < keys)
        even = maximum(even, load<WidestFloats>(scores + k * kPanel));
      const WidestFloats after = maximum(even, odd),
                         base = finite_maximum(after);
      WidestFloats total = {}, other = {};
      for (k = 0; k + 2 <= keys; k += 2) {
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
