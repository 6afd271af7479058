#include "rows.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>

#include "lockstep/comm/backend/types.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::python {
namespace {

void check(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu()) return;
  throw InvalidArgument(
      "lockstep carries dense CPU tensors, not " +
      (tensor.defined() ? tensor.toString() + " on " + tensor.device().str() : "undefined ones"));
}

// Of contiguous memory.
at::Tensor wire_to_move(const at::Tensor& whole) {
  const at::Tensor flat = whole.view({-1});
  return is_supported_dtype(whole.scalar_type()) ? flat : flat.view(at::kByte);
}

at::Tensor wire_to_reduce(const at::Tensor& whole, bool complex_as_pairs) {
  if (whole.is_complex() && complex_as_pairs) return at::view_as_real(whole).view({-1});
  if (!is_supported_dtype(whole.scalar_type())) {
    throw InvalidArgument(std::string("lockstep does not reduce ") +
                          c10::toString(whole.scalar_type()) + " by this operation");
  }
  return whole.view({-1});
}

Row make_row(const at::Tensor& tensor) {
  check(tensor);
  Row row;
  row.tensor = tensor.detach();
  row.whole = row.tensor.resolve_conj().resolve_neg().contiguous();
  row.copied = row.whole.const_data_ptr() != row.tensor.const_data_ptr();
  return row;
}

// The memory of tensors that lie one after another in one storage, as one row; undefined if they do
// not.
at::Tensor consecutive(const std::vector<at::Tensor>& tensors) {
  const at::Tensor& first = tensors.front();
  int64_t offset = first.storage_offset();
  const int64_t begin = offset;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg() ||
        tensor.scalar_type() != first.scalar_type() || !tensor.is_alias_of(first) ||
        tensor.storage_offset() != offset)
      return {};
    offset += tensor.numel();
  }
  return first.detach().as_strided({offset - begin}, {1}, begin);
}

template <typename ToWire>
Joined join(const std::vector<at::Tensor>& tensors, bool fill, const ToWire& to_wire) {
  Joined joined;
  joined.tensors = tensors;
  bool same_dtype = true;
  for (const at::Tensor& tensor : tensors) {
    check(tensor);
    same_dtype &= tensor.scalar_type() == tensors.front().scalar_type();
  }
  at::Tensor whole;
  if (!tensors.empty()) whole = consecutive(tensors);
  if (!whole.defined()) {
    joined.copied = true;
    int64_t total = 0;
    std::vector<at::Tensor> flat;
    for (const at::Tensor& tensor : tensors) {
      const at::Tensor source = tensor.detach().resolve_conj().resolve_neg();
      // Without values, only the length counts.
      at::Tensor row = fill || !same_dtype ? source.contiguous().view({-1}) : at::Tensor();
      if (row.defined() && !same_dtype) row = row.view(at::kByte);
      total += row.defined() ? row.numel() : tensor.numel();
      if (row.defined()) flat.push_back(row);
    }
    if (tensors.empty())
      whole = at::empty({0}, at::kByte);
    else if (fill)
      whole = at::cat(flat);
    else
      whole = at::empty({total}, tensors.front().options().dtype(
                                     same_dtype ? tensors.front().scalar_type() : at::kByte));
  }
  joined.wire = to_wire(whole);
  for (const at::Tensor& tensor : tensors) {
    const int64_t bytes = tensor.numel() * static_cast<int64_t>(tensor.element_size());
    joined.counts.push_back(bytes / static_cast<int64_t>(joined.wire.element_size()));
  }
  return joined;
}

}  // namespace

void Row::restore() const {
  if (copied) tensor.copy_(whole);
}

Row row_to_move(const at::Tensor& tensor) {
  Row row = make_row(tensor);
  row.wire = wire_to_move(row.whole);
  return row;
}

Row row_to_reduce(const at::Tensor& tensor, bool complex_as_pairs) {
  Row row = make_row(tensor);
  row.wire = wire_to_reduce(row.whole, complex_as_pairs);
  return row;
}

void Joined::restore() const {
  if (!copied) return;
  const at::Tensor bytes = wire.view(at::kByte);
  int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    const int64_t size = tensor.numel() * static_cast<int64_t>(tensor.element_size());
    // A part of another dtype may begin where its own kind must not: copied before it is viewed.
    at::Tensor part = bytes.narrow(0, at, size);
    if ((part.storage_offset() % static_cast<int64_t>(tensor.element_size())) != 0)
      part = part.clone();
    tensor.detach().copy_(part.view(tensor.scalar_type()).view(tensor.sizes()));
    at += size;
  }
}

Joined join_to_move(const std::vector<at::Tensor>& tensors, bool fill) {
  return join(tensors, fill, wire_to_move);
}

Joined join_to_reduce(const std::vector<at::Tensor>& tensors, bool complex_as_pairs) {
  return join(tensors, true, [complex_as_pairs](const at::Tensor& whole) {
    return wire_to_reduce(whole, complex_as_pairs);
  });
}

}  // namespace lockstep::inline v0::python
