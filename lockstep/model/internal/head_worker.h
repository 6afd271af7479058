// One thread's memory and its work on one head of one span at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <new>

#include "lockstep/kernels/kernels.h"
#include "lockstep/model/internal/heads.h"

namespace lockstep::inline v0::internal::head_worker {

using kernels::kPad;
using kernels::Source;
using kernels::Type;

// Queries are done in blocks, so that their scores fit the cache.
inline constexpr int64_t kQueryBlock = 128;

inline int64_t padded(int64_t n) {
  return (n + kPad - 1) / kPad * kPad;
}

template <typename T>
inline constexpr Type kTypeOf = sizeof(T) == 2 ? Type::kBFloat16 : Type::kFloat32;

template <typename T>
struct Rows {
  T* data;
  int64_t pitch;
  T* at(int64_t row) const { return data + row * pitch; }
};

template <typename T>
Rows<T> rows_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {nullptr, 0};
  return {static_cast<T*>(tensor.data_ptr()), tensor.stride(0)};
}

template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t count)
      : memory_(static_cast<T*>(
            ::operator new(static_cast<size_t>(count) * sizeof(T), std::align_val_t{64}))) {}
  T* get() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(T* memory) const { ::operator delete(memory, std::align_val_t{64}); }
  };
  std::unique_ptr<T, Free> memory_;
};

// to [m, n] (+)= a [m, k] times b [k, n] as pack_rows() lays it out.
inline void multiply(int64_t m, int64_t n, int64_t k, Rows<const float> a, const float* b,
                     float* to, bool add = false) {
  at::native::cpublas::brgemm(m, n, k, a.pitch, n, n, add, a.data, b, to, /*is_vnni=*/false);
}
inline void multiply(int64_t m, int64_t n, int64_t k, Rows<const at::BFloat16> a,
                     const at::BFloat16* b, float* to, bool add = false) {
  for (int64_t panel = 0; panel < n; panel += kernels::kPanel) {
    const int64_t width = std::min(kernels::kPanel, n - panel);
    at::native::cpublas::brgemm(m, width, k, a.pitch, width, n, add, a.data, b + panel * k,
                                to + panel, /*is_vnni=*/true);
  }
}

// The tiles that the products above have taken hold of are given back, as oneDNN asks.
template <typename T>
struct TileGuard {
  ~TileGuard() {
    if constexpr (sizeof(T) == 2) at::native::cpublas::brgemm_release(/*is_vnni=*/true);
  }
};

inline void store_rows(const float* from, int64_t from_pitch, int64_t rows, int64_t columns,
                       Rows<float> to) {
  for (int64_t r = 0; r < rows; ++r)
    std::copy_n(from + r * from_pitch, columns, to.data + r * to.pitch);
}
inline void store_rows(const float* from, int64_t from_pitch, int64_t rows, int64_t columns,
                       Rows<at::BFloat16> to) {
  kernels::kernels().round_rows(from, from_pitch, reinterpret_cast<uint16_t*>(to.data), to.pitch,
                                rows, columns);
}

// One thread's memory and the work on one head of one span.
template <typename T>
class Worker {
 public:
  Worker(const Heads& heads, const at::Tensor& statistics, int64_t most_keys, bool backward)
      : heads_(heads),
        width_(heads.queries.size(1) / heads.heads),
        padded_width_(padded(width_)),
        most_(statistics.data_ptr<float>()),
        inverse_(most_ + statistics.stride(0)),
        left_(kQueryBlock * padded_width_),
        keys_columns_(padded_width_ * padded(most_keys)),
        values_(padded_width_ * padded(most_keys)),
        scores_(kQueryBlock * padded(most_keys)),
        weights_(kQueryBlock * padded(most_keys)),
        result_(kQueryBlock * padded_width_),
        keys_(backward ? padded_width_ * padded(most_keys) : 0),
        dleft_(backward ? kQueryBlock * padded_width_ : 0),
        transposed_(backward ? kQueryBlock * padded_width_ : 0),
        dweights_(backward ? kQueryBlock * padded(most_keys) : 0),
        dscores_packed_(backward ? kQueryBlock * padded(most_keys) : 0),
        weights_packed_(backward ? kQueryBlock * padded(most_keys) : 0),
        dkeys_(backward ? padded_width_ * padded(most_keys) : 0),
        dvalues_(backward ? padded_width_ * padded(most_keys) : 0) {}

  void forward(int64_t span_index, int64_t head, const at::Tensor& mixed) {
    begin(span_index, head);
    kernel_.pack_columns(key_source(), padded_width_, padded_keys_, keys_columns_.get());
    kernel_.pack_rows(value_source(), padded_keys_, padded_width_, values_.get());
    const Rows<T> to = rows_of<T>(mixed);
    for (int64_t q = 0; q < span_->queries; q += kQueryBlock) {
      const int64_t n = std::min(kQueryBlock, span_->queries - q), m = padded(n);
      const int64_t row = span_->query_begin + q;
      multiply(m, padded_keys_, padded_width_, left(heads_.queries, row, n, left_),
               keys_columns_.get(), scores_.get());
      const int64_t at = head * heads_.queries.size(0) + row;
      kernel_.softmax(softmax(at), {scores_.get(), weights_.get(), most_ + at, inverse_ + at}, n);
      multiply(m, padded_width_, padded_keys_, {weights_.get(), padded_keys_}, values_.get(),
               result_.get());
      store_rows(result_.get(), padded_width_, n, width_, {to.at(row) + column_, to.pitch});
    }
  }

  void backward(int64_t span_index, int64_t head, const at::Tensor& dmixed,
                const HeadsGradients& gradients) {
    begin(span_index, head);
    kernel_.pack_columns(key_source(), padded_width_, padded_keys_, keys_columns_.get());
    kernel_.pack_columns(value_source(), padded_width_, padded_keys_, values_.get());
    kernel_.pack_rows(key_source(), padded_keys_, padded_width_, keys_.get());
    for (int64_t q = 0; q < span_->queries; q += kQueryBlock)
      backward_block(head, q, dmixed, gradients);
    store_columns(dkeys_.get(), gradients.keys, gradients.keys_columns);
    store_columns(dvalues_.get(), gradients.values, gradients.values_columns);
  }

 private:
  void begin(int64_t span_index, int64_t head) {
    span_index_ = span_index;
    span_ = &heads_.layout->spans[static_cast<size_t>(span_index)];
    padded_keys_ = padded(span_->keys);
    column_ = head * width_;
  }

  Source source(const at::Tensor& tensor, int64_t row, int64_t rows) const {
    const Rows<T> from = rows_of<T>(tensor);
    return {kTypeOf<T>, from.at(row) + column_, rows, width_, from.pitch};
  }
  Source key_source() const { return source(heads_.keys, span_->key_begin, span_->keys); }
  Source value_source() const { return source(heads_.values, span_->key_begin, span_->keys); }

  // Rows as a product's left matrix, its height and width padded: where they lie if they fit.
  Rows<const T> left(const at::Tensor& tensor, int64_t row, int64_t n, const Buffer<T>& copy) {
    const Rows<T> from = rows_of<T>(tensor);
    if (n % kPad == 0 && width_ == padded_width_) return {from.at(row) + column_, from.pitch};
    std::fill_n(copy.get(), padded(n) * padded_width_, T(0));
    for (int64_t r = 0; r < n; ++r)
      std::copy_n(from.at(row + r) + column_, width_, copy.get() + r * padded_width_);
    return {copy.get(), padded_width_};
  }

  // [width, rows], both padded: the left matrix of a product over rows.
  Rows<const T> turned_left(const at::Tensor& tensor, int64_t row, int64_t n) {
    const int64_t pitch = padded(n);
    if (n != pitch || width_ != padded_width_)
      std::fill_n(transposed_.get(), padded_width_ * pitch, T(0));
    kernel_.transpose(source(tensor, row, n), transposed_.get(), pitch);
    return {transposed_.get(), pitch};
  }

  kernels::Softmax softmax(int64_t mask_row) const {
    kernels::Softmax s;
    s.keys = span_->keys;
    s.pitch = padded_keys_;
    s.type = kTypeOf<T>;
    s.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(width_)));
    if (heads_.layout->bias.defined())
      s.bias =
          heads_.layout->bias.const_data_ptr<float>() + span_index_ * heads_.layout->bias.stride(0);
    s.dropout = heads_.dropout;
    s.mask_row = heads_.first_head * heads_.queries.size(0) + mask_row;
    return s;
  }

  void backward_block(int64_t head, int64_t q, const at::Tensor& dmixed,
                      const HeadsGradients& gradients) {
    const int64_t n = std::min(kQueryBlock, span_->queries - q), m = padded(n);
    const int64_t row = span_->query_begin + q, at = head * heads_.queries.size(0) + row;
    multiply(m, padded_keys_, padded_width_, left(heads_.queries, row, n, left_),
             keys_columns_.get(), scores_.get());
    multiply(m, padded_keys_, padded_width_, left(dmixed, row, n, dleft_), values_.get(),
             dweights_.get());
    kernels::SoftmaxGradients g;
    g.scores = scores_.get();
    g.dweights = dweights_.get();
    g.most = most_ + at;
    g.inverse = inverse_ + at;
    g.rows = m;
    g.dscores = weights_.get();
    g.dscores_packed = dscores_packed_.get();
    g.weights_packed = weights_packed_.get();
    kernel_.softmax_backward(softmax(at), g, n);
    const Results results = results_of();
    multiply(m, padded_width_, padded_keys_, {results.dscores, padded_keys_}, keys_.get(),
             result_.get());
    const Rows<T> to = rows_of<T>(gradients.queries);
    store_rows(result_.get(), padded_width_, n, width_, {to.at(row) + column_, to.pitch});
    turn_queries(row, n, gradients);
    multiply(padded_width_, padded_keys_, m, turned_left(dmixed, row, n), results.weights_packed,
             dvalues_.get(), q > 0);
    multiply(padded_width_, padded_keys_, m, turned_left(heads_.queries, row, n),
             results.dscores_packed, dkeys_.get(), q > 0);
  }

  struct Results {
    const T* dscores;
    const T* dscores_packed;
    const T* weights_packed;
  };
  Results results_of() const {
    if constexpr (sizeof(T) == 4)
      return {dweights_.get(), dweights_.get(), scores_.get()};
    else
      return {weights_.get(), dscores_packed_.get(), weights_packed_.get()};
  }

  void turn_queries(int64_t row, int64_t n, const HeadsGradients& gradients) {
    const Rows<T> columns = rows_of<T>(gradients.queries_columns);
    if (columns.data != nullptr)
      kernel_.transpose(source(gradients.queries, row, n), columns.at(column_) + row,
                        columns.pitch);
  }

  // A gradient [width, keys] to the rows that it belongs to.
  void store_columns(const float* from, const at::Tensor& rows, const at::Tensor& columns) {
    const Rows<T> to = rows_of<T>(rows), turned = rows_of<T>(columns);
    Source gradient{Type::kFloat32, from, width_, span_->keys, padded_keys_};
    if constexpr (sizeof(T) == 2) {
      T* const place = turned.at(column_) + span_->key_begin;
      store_rows(from, padded_keys_, width_, span_->keys, {place, turned.pitch});
      gradient = {Type::kBFloat16, place, width_, span_->keys, turned.pitch};
    }
    kernel_.transpose(gradient, to.at(span_->key_begin) + column_, to.pitch);
  }

  const kernels::Kernels& kernel_ = kernels::kernels();
  const Heads& heads_;
  int64_t width_, padded_width_;
  float* most_;
  float* inverse_;
  int64_t span_index_ = 0, padded_keys_ = 0, column_ = 0;
  const AttentionSpan* span_ = nullptr;
  Buffer<T> left_, keys_columns_, values_;
  Buffer<float> scores_;
  Buffer<T> weights_;  // in backward the gradient of the scores
  Buffer<float> result_;
  Buffer<T> keys_, dleft_, transposed_;
  Buffer<float> dweights_;
  Buffer<T> dscores_packed_, weights_packed_;
  Buffer<float> dkeys_, dvalues_;
  TileGuard<T> tiles_;
};

}  // namespace lockstep::inline v0::internal::head_worker
