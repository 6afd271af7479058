#include "lockstep/data/token_windows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::data {

struct TokenWindows::Row {
  std::vector<int32_t> tokens;
  std::vector<int64_t> ends;  // of the texts, ascending: the position after the last token
};

TokenWindows::TokenWindows() : row_(std::make_shared<Row>()) {}

TokenWindows::TokenWindows(std::span<const std::vector<int32_t>> texts, int64_t length,
                           WindowRest rest)
    : length_(length), rest_(rest) {
  if (length < 1)
    throw InvalidArgument("TokenWindows: length is " + std::to_string(length) + "; give 1 or more");
  auto row = std::make_shared<Row>();
  for (const std::vector<int32_t>& text : texts) {
    if (text.size() < 2) continue;
    for (const int32_t token : text) {
      if (token < 0)
        throw InvalidArgument("TokenWindows: the token " + std::to_string(token) + " is negative");
    }
    row->tokens.insert(row->tokens.end(), text.begin(), text.end());
    row->ends.push_back(static_cast<int64_t>(row->tokens.size()));
  }
  row_ = std::move(row);
}

// The last window's last target is the token after it; there is none if a text ends with it.
int64_t TokenWindows::size() const {
  const auto tokens = static_cast<int64_t>(row_->tokens.size());
  return (tokens + (rest_ == WindowRest::kKept ? length_ - 1 : 0)) / length_;
}

int64_t TokenWindows::tokens() const {
  return std::min(size() * length_, static_cast<int64_t>(row_->tokens.size()));
}

int64_t TokenWindows::targets() const {
  const auto& ends = row_->ends;
  return tokens() - (std::upper_bound(ends.begin(), ends.end(), tokens()) - ends.begin());
}

LmBatch TokenWindows::batch(std::span<const int64_t> indices) const {
  if (indices.empty()) throw InvalidArgument("TokenWindows: a batch of no windows");
  const auto all = static_cast<int64_t>(row_->tokens.size());
  int64_t count = 0;
  for (const int64_t index : indices) {
    if (index < 0 || index >= size())
      throw InvalidArgument("TokenWindows: there is no window " + std::to_string(index) + " of " +
                            std::to_string(size()));
    count += std::min(length_, all - index * length_);
  }
  LmBatch batch{at::empty({count}, at::kLong), at::empty({count}, at::kLong), {}};
  auto* id = batch.ids.mutable_data_ptr<int64_t>();
  auto* target = batch.targets.mutable_data_ptr<int64_t>();
  std::vector<int64_t> lengths;
  for (const int64_t index : indices) {
    const int64_t end = std::min((index + 1) * length_, all);
    int64_t at = index * length_;
    auto text = std::upper_bound(row_->ends.begin(), row_->ends.end(), at);
    while (at < end) {
      const int64_t stop = std::min(end, *text);
      lengths.push_back(stop - at);
      for (; at < stop; ++at) {
        *id++ = row_->tokens[static_cast<size_t>(at)];
        *target++ = at + 1 < *text ? row_->tokens[static_cast<size_t>(at + 1)] : kNoTarget;
      }
      ++text;
    }
  }
  batch.lengths = at::tensor(lengths, at::kLong);
  return batch;
}

}  // namespace lockstep::inline v0::data
