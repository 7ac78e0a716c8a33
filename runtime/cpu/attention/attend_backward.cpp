#include "cpu/attention/heads.h"
#include "cpu/attention/panels.h"
#include "cpu/gemm/workspace.h"

namespace steelyard::STEELYARD_ISA {

// Near while every panel of queries reads them.
static constexpr int64_t kGradientKeys = 96;

// The gradients of one key head, and of the queries of the heads that share it.
//
// With P = exp(scores - logsumexp), dP = grad_out value^T and
// dS = P (dP - rowsum(grad_out out)): grad_value = P^T grad_out,
// grad_key = dS^T scale query and grad_query = scale dS key. P and dS of a
// panel of queries and a block of keys are [key][kPanel], as scores are.
class KeyHeadGradients {
public:
  KeyHeadGradients(const AttentionGradients &call, int64_t batch,
                   int64_t key_head)
      : call_(call), problem_(call.problem), batch_(batch), key_head_(key_head),
        columns_(whole_vectors(problem_.head_size)),
        panels_((problem_.queries + kPanel - 1) / kPanel) {
    take_memory();
  }

  void run() {
    const int64_t keys = problem_.keys, size = keys * columns_;
    fill_rows(problem_.key, key_head_, keys, 1.0f, key_);
    fill_rows(problem_.value, key_head_, keys, 1.0f, value_);
    std::memset(grad_key_, 0, size * sizeof *grad_key_);
    std::memset(grad_value_, 0, size * sizeof *grad_value_);
    const int64_t group = group_size(problem_);
    for (int64_t i = 0; i < group; ++i)
      differentiate(key_head_ * group + i);
    store_rows(grad_key_, keys, 1.0f, call_.grad_key, key_head_);
    store_rows(grad_value_, keys, 1.0f, call_.grad_value, key_head_);
  }

private:
  void take_memory() {
    const int64_t keys = problem_.keys * columns_,
                  rows = panels_ * kPanel * columns_;
    const int64_t panel = panels_ * kPanel * problem_.head_size;
    const int64_t row = columns_ > kGradientKeys ? columns_ : kGradientKeys;
    const int64_t block = kGradientKeys * kPanel;
    float **const places[] = {
        &key_,      &value_,      &grad_key_,     &grad_value_,  &query_,
        &grad_out_, &grad_query_, &query_panels_, &grad_panels_, &weights_,
        &products_, &mask_panel_, &logsumexp_,    &corrections_, &buffer_};
    const int64_t sizes[] = {keys,
                             keys,
                             keys,
                             keys,
                             rows,
                             rows,
                             rows,
                             panel,
                             panel,
                             block,
                             block,
                             block,
                             panels_ * kPanel,
                             panels_ * kPanel,
                             8 * row};
    constexpr int count = sizeof sizes / sizeof sizes[0];
    int64_t total = 0;
    for (int64_t size : sizes)
      total += whole_line(size);
    float *memory = static_cast<float *>(
        thread_workspace(WorkspaceUse::attention, total * sizeof(float)));
    for (int i = 0; i < count; ++i) {
      *places[i] = memory;
      memory += whole_line(sizes[i]);
    }
  }

  static int64_t whole_line(int64_t floats) { return (floats + 15) / 16 * 16; }

  // Rows of whole vectors, times a factor.
  void fill_rows(const HeadsView &x, int64_t head, int64_t tokens, float factor,
                 float *out) {
    const int64_t size = problem_.head_size;
    const Matrix rows = head_of(x, batch_, head, tokens, size);
    for (int64_t i = 0; i < tokens; ++i, out += columns_) {
      const float *found = row_chunk(rows, i, 0, size, out);
      for (int64_t d = 0; d < size; ++d)
        out[d] = found[d] * factor;
      std::memset(out + size, 0, (columns_ - size) * sizeof *out);
    }
  }

  void store_rows(float *rows, int64_t tokens, float factor,
                  const HeadsView &out, int64_t head) {
    const int64_t size = problem_.head_size;
    if (size == 0)
      return;
    const int64_t item = item_size(out.dtype);
    char *first = static_cast<char *>(out.data) +
                  (batch_ * out.batch_stride + head * out.head_stride) * item;
    for (int64_t i = 0; i < tokens; ++i, rows += columns_) {
      for (int64_t d = 0; d < size; ++d)
        rows[d] *= factor;
      store_row(rows, size, out.dtype, first + i * out.token_stride * item);
    }
  }

  void differentiate(int64_t head) {
    fill_head(head);
    for (int64_t key = 0; key < problem_.keys; key += kGradientKeys)
      // Queries before the first key of a block see none of its keys.
      for (int64_t panel = problem_.causal ? key / kPanel : 0; panel < panels_;
           ++panel)
        differentiate(head, panel, key);
    store_rows(grad_query_, problem_.queries, problem_.scale, call_.grad_query,
               head);
  }

  void fill_head(int64_t head) {
    const int64_t queries = problem_.queries, size = problem_.head_size;
    // Rows of `grad_query_` serve as those of the forward's result first.
    fill_rows(call_.out, head, queries, 1.0f, grad_query_);
    fill_rows(call_.grad_out, head, queries, 1.0f, grad_out_);
    fill_rows(problem_.query, head, queries, problem_.scale, query_);
    const TokenFloats &sums = call_.logsumexp;
    for (int64_t i = 0; i < panels_ * kPanel; ++i) {
      // A query that is missing has no weights.
      logsumexp_[i] = -kNoScore;
      corrections_[i] = 0.0f;
      if (i >= queries)
        continue;
      logsumexp_[i] =
          sums.data[batch_ * sums.batch_stride + head * sums.head_stride +
                    i * sums.token_stride];
      corrections_[i] =
          dot(grad_out_ + i * columns_, grad_query_ + i * columns_);
    }
    std::memset(grad_query_, 0, queries * columns_ * sizeof *grad_query_);
    fill_panels(query_, size, query_panels_);
    fill_panels(grad_out_, size, grad_panels_);
  }

  float dot(const float *a, const float *b) const {
    WidestFloats sum = {};
    for (int64_t d = 0; d < columns_; d += kLanes)
      sum = multiply_add(load<WidestFloats>(a + d), load<WidestFloats>(b + d),
                         sum);
    float total = 0.0f;
    for (int i = 0; i < kLanes; ++i)
      total += sum[i];
    return total;
  }

  void fill_panels(const float *rows, int64_t size, float *out) {
    const Matrix matrix{rows, Dtype::f32, problem_.queries, size, columns_, 1};
    for (int64_t panel = 0; panel < panels_; ++panel)
      fill_panel(matrix, panel * kPanel, rows_of(panel), 0, size, buffer_,
                 out + panel * kPanel * size);
  }

  int64_t rows_of(int64_t panel) const {
    return smaller(kPanel, problem_.queries - panel * kPanel);
  }

  // Adds what a panel of queries and a block of keys have in common.
  void differentiate(int64_t head, int64_t panel, int64_t key) {
    const int64_t rows = rows_of(panel), query = panel * kPanel;
    const int64_t seen = visible_keys(problem_, query + rows - 1) - key;
    const int64_t keys = smaller(kGradientKeys, seen);
    if (keys <= 0)
      return;
    const int64_t size = problem_.head_size, at = panel * kPanel * size;
    multiply_keys<kPanelVectors>(query_panels_ + at, key_ + key * columns_,
                                 columns_, size, keys, weights_);
    multiply_keys<kPanelVectors>(grad_panels_ + at, value_ + key * columns_,
                                 columns_, size, keys, products_);
    if (problem_.mask.data)
      add_mask(head, query, rows, key, keys);
    if (problem_.causal && key + keys > query + 1)
      hide_later_keys(query, key, keys);
    weigh(panel, keys);
    add_weighted(weights_, kPanel, 1, grad_out_ + query * columns_, rows,
                 grad_value_ + key * columns_, keys, columns_);
    add_weighted(products_, kPanel, 1, query_ + query * columns_, rows,
                 grad_key_ + key * columns_, keys, columns_);
    add_weighted(products_, 1, kPanel, key_ + key * columns_, keys,
                 grad_query_ + query * columns_, rows, columns_);
  }

  void add_mask(int64_t head, int64_t query, int64_t rows, int64_t key,
                int64_t keys) {
    const Matrix mask =
        head_of(problem_.mask, batch_, head, problem_.queries, problem_.keys);
    fill_panel(mask, query, rows, key, keys, buffer_, mask_panel_);
    for (int64_t i = 0; i < keys * kPanel; ++i)
      weights_[i] += mask_panel_[i];
  }

  void hide_later_keys(int64_t query, int64_t key, int64_t keys) {
    for (int64_t k = query + 1 > key ? query + 1 - key : 0; k < keys; ++k) {
      const int64_t hidden = smaller(key + k - query, kPanel);
      for (int64_t lane = 0; lane < hidden; ++lane)
        weights_[k * kPanel + lane] = kNoScore;
    }
  }

  // Makes P of scores, and dS of dP.
  void weigh(int64_t panel, int64_t keys) {
    for (int v = 0; v < kPanelVectors; ++v) {
      const int64_t lane = panel * kPanel + v * kLanes;
      const WidestFloats logarithm = load<WidestFloats>(logsumexp_ + lane),
                         correction = load<WidestFloats>(corrections_ + lane);
      for (int64_t k = 0; k < keys; ++k) {
        float *weight = weights_ + k * kPanel + v * kLanes,
              *product = products_ + k * kPanel + v * kLanes;
        const WidestFloats x = load<WidestFloats>(weight) - logarithm;
        // Above 0 by rounding alone.
        const WidestFloats p =
            exp_of_negative(x > WidestFloats{} ? WidestFloats{} : x);
        store(weight, p);
        store(product, p * (load<WidestFloats>(product) - correction));
      }
    }
  }

  const AttentionGradients &call_;
  const AttentionProblem &problem_;
  const int64_t batch_, key_head_;
  const int64_t columns_; // of rows: whole vectors
  const int64_t panels_;
  // Rows of all keys, and of all queries of a head; queries are scaled.
  float *key_, *value_, *grad_key_, *grad_value_;
  float *query_, *grad_out_, *grad_query_;
  float *query_panels_, *grad_panels_; // turned, as fill_panel() leaves them
  float *weights_, *products_, *mask_panel_;
  float *logsumexp_, *corrections_, *buffer_;
};

void attend_backward(const AttentionGradients &call, int64_t begin,
                     int64_t end) {
  const int64_t key_heads = call.problem.key_heads;
  for (int64_t task = begin; task < end; ++task)
    KeyHeadGradients(call, task / key_heads, task % key_heads).run();
}

} // namespace steelyard::STEELYARD_ISA
