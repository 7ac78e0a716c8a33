#include "cpu/attention/code_products.h"
#include "cpu/attention/few_products.h"
#include "cpu/attention/heads.h"
#include "cpu/gemm/workspace.h"

namespace steelyard::STEELYARD_ISA {

// Keys whose values are still near when their scores are known.
static constexpr int64_t kStepKeys = 64;
static_assert(kChunkKeys % kStepKeys == 0);
static constexpr int64_t kKeysAhead = 8;

static inline void prefetch(const void *memory, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64)
    __builtin_prefetch(static_cast<const char *>(memory) + i);
}

// One chunk of keys, for all queries of all heads that share them.
class KeyChunk {
public:
  KeyChunk(const AttentionProblem &problem, int64_t batch, int64_t key_head,
           float *partial)
      : problem_(problem), batch_(batch), key_head_(key_head),
        rows_(group_size(problem) * problem.queries),
        columns_(whole_vectors(problem.head_size)), partial_(partial),
        key_(kept_keys(problem, batch, key_head)),
        value_(kept_values(problem, batch, key_head)),
        reads_codes_(has_code_groups(key_) && has_code_groups(value_)) {
    const int64_t step = kStepKeys * columns_, rows = rows_ * columns_;
    queries_ = static_cast<float *>(
        thread_workspace(WorkspaceUse::attention,
                         (2 * (step + rows) + kStepKeys) * sizeof(float)));
    sums_ = queries_ + rows;
    key_memory_ = sums_ + rows;
    value_memory_ = key_memory_ + step;
    mask_row_ = value_memory_ + step;
    fill_queries();
  }

  void run(int64_t first, int64_t end) {
    // The last query sees most.
    end = smaller(end, visible_keys(problem_, problem_.queries - 1));
    if (reads_codes_)
      find_value_powers(first, end);
    for (; first < end; first += kStepKeys) {
      const int64_t keys = smaller(kStepKeys, end - first);
      if (problem_.mask.data && is_hidden(first, keys))
        continue;
      if (reads_codes_)
        multiply_key_codes(first, keys);
      else
        multiply_keys(load_rows(key_, first, keys, false, key_memory_), keys);
      float factors[kSharingQueries];
      for (int64_t row = 0; row < rows_; ++row)
        factors[row] = exponentiate(row, first, keys);
      if (reads_codes_)
        multiply_value_codes(first, keys, factors);
      else
        multiply_values(load_rows(value_, first, keys, false, value_memory_),
                        first, keys, factors);
    }
    store_partial();
  }

private:
  int64_t head_of_row(int64_t row) const {
    return key_head_ * group_size(problem_) + row / problem_.queries;
  }

  void fill_queries() {
    const int64_t size = problem_.head_size;
    for (int64_t row = 0; row < rows_; ++row) {
      const Matrix query = head_of(problem_.query, batch_, head_of_row(row),
                                   problem_.queries, size);
      float *out = queries_ + row * columns_;
      const float *found =
          row_chunk(query, row % problem_.queries, 0, size, out);
      for (int64_t d = 0; d < columns_; ++d)
        out[d] = d < size ? found[d] * problem_.scale : 0.0f;
      if (reads_codes_)
        scale_query(row, out);
      largest_[row] = kNoScore;
    }
    std::memset(totals_, 0, rows_ * kLanes * sizeof *totals_);
    std::memset(sums_, 0, rows_ * columns_ * sizeof *sums_);
  }

  // Whether the mask hides some keys from all queries: a cache of fixed size
  // has many that are yet to come.
  bool is_hidden(int64_t first, int64_t keys) {
    for (int64_t row = 0; row < rows_; ++row) {
      const float *mask = mask_of(row, first, keys);
      for (int64_t k = 0; k < keys; ++k)
        if (!(mask[k] == kNoScore))
          return false;
    }
    return true;
  }

  // A query as codes are multiplied with it.
  void scale_query(int64_t row, float *query) {
    query_powers_[row] = powers_for(largest_of(query, columns_, 1));
    for (int64_t d = 0; d < columns_; ++d)
      query[d] *= query_powers_[row].up;
  }

  void find_value_powers(int64_t first, int64_t end) {
    const int64_t stride = value_.scales_stride;
    value_powers_ = powers_for(
        largest_of(value_.scales + first * stride, end - first, stride));
  }

  void multiply_key_codes(int64_t first, int64_t keys) {
    NanWatch watch;
    for (int64_t k = 0; k < keys; k += kLanes) {
      // Of the next step: between the two, values are read.
      for (int64_t i = 0; i < kLanes; ++i)
        prefetch(key_.codes(first + k + kStepKeys + i), columns_);
      const CodeRows key = key_codes(first + k, keys - k);
      each_few<kCodeQueries>(rows_, [&]<int rows>(int64_t row) {
        STEELYARD_ISA::multiply_key_codes<rows>(
            queries_ + row * columns_, columns_, key.data, key.stride,
            scores_[row] + k, kStepKeys, watch);
      });
    }
    alignas(64) float scales[kStepKeys];
    load_scales(key_, first, keys, 1.0f, scales);
    for (int64_t row = 0; row < rows_; ++row)
      for (int64_t k = 0; k < keys; ++k)
        scores_[row][k] = scores_[row][k] * scales[k] * query_powers_[row].down;
    if (watch.has_seen())
      keep_nan_keys(first, keys);
  }

  static void load_scales(const KeptHead &x, int64_t first, int64_t keys,
                          float power, float *out) {
    const int64_t stride = x.scales_stride;
    const float *scales = x.scales + first * stride;
    if (stride == 1) // in vectors
      for (int64_t k = 0; k < keys; ++k)
        out[k] = scales[k] * power;
    else
      for (int64_t k = 0; k < keys; ++k)
        out[k] = scales[k * stride] * power;
  }

  struct CodeRows {
    const uint8_t *data;
    int64_t stride;
  };

  // kLanes rows of codes; those that are missing are zeros.
  CodeRows key_codes(int64_t first, int64_t keys) {
    if (keys >= kLanes)
      return {key_.codes(first), key_.rows.row_stride};
    uint8_t *copy = reinterpret_cast<uint8_t *>(key_memory_);
    std::memset(copy, 0, kLanes * columns_);
    for (int64_t k = 0; k < keys; ++k)
      std::memcpy(copy + k * columns_, key_.codes(first + k), columns_);
    return {copy, columns_};
  }

  void keep_nan_keys(int64_t first, int64_t keys) {
    for (int64_t k = 0; k < keys; ++k)
      for (int64_t d = 0; d < columns_; ++d)
        if (is_nan_code(key_.codes(first + k)[d]))
          for (int64_t row = 0; row < rows_; ++row)
            scores_[row][k] = __builtin_nanf("");
  }

  void multiply_value_codes(int64_t first, int64_t keys, const float *factors) {
    alignas(64) float scales[kStepKeys];
    load_scales(value_, first, keys, value_powers_.up, scales);
    for (int64_t row = 0; row < rows_; ++row)
      for (int64_t k = 0; k < keys; ++k)
        scores_[row][k] *= scales[k];
    NanWatch watch;
    const auto multiply = [&]<int rows>(int64_t row, int64_t begin, int64_t n,
                                        const float *factor) {
      STEELYARD_ISA::multiply_value_codes<rows>(
          scores_[row] + begin, kStepKeys, value_.codes(first + begin),
          value_.rows.row_stride, n, kStepKeys, factor, sums_ + row * columns_,
          columns_, watch);
    };
    each_sight<kCodeQueries>(first, keys, factors, multiply);
    if (watch.has_seen())
      keep_nan_values(first, keys);
  }

  void keep_nan_values(int64_t first, int64_t keys) {
    for (int64_t k = 0; k < keys; ++k)
      for (int64_t d = 0; d < columns_; ++d)
        if (is_nan_code(value_.codes(first + k)[d]))
          for (int64_t row = 0; row < rows_; ++row)
            if (k < keys_seen(row, first, keys))
              sums_[row * columns_ + place_of_column(d)] = __builtin_nanf("");
  }

  void multiply_keys(Rows key, int64_t keys) {
    for (int64_t k = 0; k < keys; k += kKeysPerSum) {
      // One query is done with its keys before the processor asks for more.
      if (rows_ == 1)
        prefetch(key.data + (k + kKeysAhead) * key.stride,
                 kKeysPerSum * key.stride * sizeof *key.data);
      each_few<4>(rows_, [&]<int rows>(int64_t row) {
        multiply_few_keys<rows>(queries_ + row * columns_, columns_,
                                key.data + k * key.stride, key.stride, keys - k,
                                scores_[row] + k, kStepKeys);
      });
    }
  }

  void multiply_values(Rows value, int64_t first, int64_t keys,
                       const float *factors) {
    const auto multiply = [&]<int rows>(int64_t row, int64_t begin, int64_t n,
                                        const float *factor) {
      multiply_few_values<rows>(scores_[row] + begin, kStepKeys,
                                value.data + begin * value.stride, value.stride,
                                n, factor, sums_ + row * columns_, columns_);
    };
    each_sight<4>(first, keys, factors, multiply);
  }

  // How many of some keys a row sees.
  int64_t keys_seen(int64_t row, int64_t first, int64_t keys) const {
    const int64_t seen = visible_keys(problem_, row % problem_.queries) - first;
    return seen < 0 ? 0 : smaller(seen, keys);
  }

  // Calls `multiply.template operator()<rows>(row, begin, n, factors)` such
  // that each row gets the keys that it sees, and no others: a weight of 0
  // makes NaN of an infinite value. Keys that all rows see come first, for
  // `most` rows at a time.
  template <int most, class F>
  void each_sight(int64_t first, int64_t keys, const float *factors,
                  const F &multiply) const {
    const int64_t shared = keys_seen(0, first, keys);
    each_few<most>(rows_, [&]<int rows>(int64_t row) {
      multiply.template operator()<rows>(row, 0, shared, factors + row);
    });
    if (shared == keys)
      return;
    constexpr float one = 1.0f;
    for (int64_t row = 0; row < rows_; ++row)
      multiply.template operator()<1>(
          row, shared, keys_seen(row, first, keys) - shared, &one);
  }

  // Makes weights of a row's scores; returns the factor of what was summed.
  float exponentiate(int64_t row, int64_t first, int64_t keys) {
    float *scores = scores_[row];
    if (problem_.mask.data)
      add_mask(row, first, keys);
    const int64_t whole = whole_vectors(keys);
    for (int64_t k = keys_seen(row, first, keys); k < whole; ++k)
      scores[k] = kNoScore;
    const float before = largest_[row];
    WidestFloats found = all_lanes(before);
    for (int64_t k = 0; k < whole; k += kLanes)
      found = maximum(found, load<WidestFloats>(scores + k));
    largest_[row] = largest_lane(found);
    const float base = finite_maximum(largest_[row]);
    WidestFloats total = {};
    for (int64_t k = 0; k < whole; k += kLanes) {
      const WidestFloats weight =
          exp_of_negative(load<WidestFloats>(scores + k) - all_lanes(base));
      store(scores + k, weight);
      total += weight;
    }
    // What is summed is multiplied down only if a larger score came.
    const float factor = before == base ? 1.0f : exp_of_negative(before - base);
    float *totals = totals_ + row * kLanes;
    store(totals,
          multiply_add(load<WidestFloats>(totals), all_lanes(factor), total));
    return factor;
  }

  const float *mask_of(int64_t row, int64_t first, int64_t keys) {
    const Matrix mask = head_of(problem_.mask, batch_, head_of_row(row),
                                problem_.queries, problem_.keys);
    return row_chunk(mask, row % problem_.queries, first, keys, mask_row_);
  }

  void add_mask(int64_t row, int64_t first, int64_t keys) {
    const float *found = mask_of(row, first, keys);
    for (int64_t k = 0; k < keys; ++k)
      scores_[row][k] += found[k];
  }

  void store_partial() {
    const int64_t size = problem_.head_size;
    for (int64_t row = 0; row < rows_; ++row) {
      float *out = partial_ + row * (size + 2);
      const float *sums = sums_ + row * columns_;
      for (int64_t d = 0; d < size; ++d)
        out[d] = reads_codes_ ? sums[place_of_column(d)] * value_powers_.down
                              : sums[d];
      out[size] = largest_[row];
      const WidestFloats totals[kKeysPerSum] = {
          load<WidestFloats>(totals_ + row * kLanes)};
      out[size + 1] = lane_sums(totals)[0];
    }
  }

  const AttentionProblem &problem_;
  const int64_t batch_, key_head_;
  const int64_t rows_;    // every query of every head
  const int64_t columns_; // of a row: whole vectors
  float *const partial_;
  const KeptHead key_, value_;
  const bool reads_codes_; // as they are: not decoded first
  Powers query_powers_[kSharingQueries], value_powers_;
  float *queries_, *sums_, *key_memory_, *value_memory_, *mask_row_;
  alignas(64) float scores_[kSharingQueries][kStepKeys];
  float largest_[kSharingQueries];
  alignas(64) float totals_[kSharingQueries * kLanes]; // in lanes
};

static float *partial_of(const AttentionCall &call, int64_t key_head,
                         int64_t chunk) {
  return call.partials +
         (key_head * call.splits + chunk) * partial_size(call.problem);
}

void attend_few(const AttentionCall &call, int64_t begin, int64_t end) {
  const AttentionProblem &problem = call.problem;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t head = task / call.splits, chunk = task % call.splits;
    KeyChunk(problem, head / problem.key_heads, head % problem.key_heads,
             partial_of(call, head, chunk))
        .run(chunk * kChunkKeys, (chunk + 1) * kChunkKeys);
  }
}

// Adds a chunk's row to that of the chunks before it.
static void merge_row(float *row, const float *next, int64_t size) {
  float *largest = row + size, *total = row + size + 1;
  const float after = next[size] > *largest ? next[size] : *largest,
              base = finite_maximum(after);
  const float kept = exp_of_negative(*largest - base),
              added = exp_of_negative(next[size] - base);
  for (int64_t d = 0; d < size; ++d)
    row[d] = row[d] * kept + next[d] * added;
  *total = *total * kept + next[size + 1] * added;
  *largest = after;
}

void merge_few(const AttentionCall &call, int64_t begin, int64_t end) {
  const AttentionProblem &problem = call.problem;
  const int64_t size = problem.head_size, group = group_size(problem);
  for (int64_t task = begin; task < end; ++task) {
    float *first = partial_of(call, task, 0);
    for (int64_t row = 0; row < group * problem.queries; ++row) {
      float *sums = first + row * (size + 2);
      for (int64_t chunk = 1; chunk < call.splits; ++chunk)
        merge_row(sums, partial_of(call, task, chunk) + row * (size + 2), size);
      const int64_t head =
          task % problem.key_heads * group + row / problem.queries;
      finish_query(problem, task / problem.key_heads, head,
                   row % problem.queries, sums, sums[size], sums[size + 1]);
    }
  }
}

} // namespace steelyard::STEELYARD_ISA
