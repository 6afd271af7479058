#include "lockstep/comm/same_on_all_ranks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <sstream>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep {
namespace {

std::vector<std::string> describe_tensors(const NamedTensorList& tensors) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : tensors) {
    std::ostringstream line;
    line << name << " " << dtype_name(tensor.scalar_type()) << " " << tensor.sizes()
         << (tensor.requires_grad() ? "" : " (no gradient)");
    lines.push_back(line.str());
  }
  return lines;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::vector<std::string>> gather_lines(Communicator& comm,
                                                   const std::vector<std::string>& mine) {
  std::string text;
  for (const std::string& line : mine) text += line + "\n";
  const at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  // The sizes are needed here too, to tell where each rank's text ends: exchanged once, for both.
  const at::Tensor size = at::empty({1}, at::kLong);
  *size.mutable_data_ptr<int64_t>() = bytes.numel();
  const at::Tensor all_sizes = comm.all_gather(size);
  const std::span sizes(all_sizes.const_data_ptr<int64_t>(), static_cast<size_t>(comm.size()));
  const at::Tensor all =
      at::empty({std::accumulate(sizes.begin(), sizes.end(), int64_t{0})}, at::kByte);
  comm.iall_gatherv(all, bytes, sizes).wait();
  const auto* data = static_cast<const char*>(all.const_data_ptr());
  std::vector<std::vector<std::string>> result;
  for (const int64_t n : sizes) {
    result.push_back(split_lines(std::string(data, static_cast<size_t>(n))));
    data += n;
  }
  return result;
}

// Of the bits: -0 and 0 differ, equal NaN do not.
uint64_t hash_values(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().cpu().contiguous();
  const auto* bytes = static_cast<const unsigned char*>(values.const_data_ptr());
  size_t left = values.nbytes();
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ULL;
  uint64_t lanes[4] = {1, 2, 3, 4};  // four at a time: a multiplication takes three cycles
  for (; left >= sizeof lanes; left -= sizeof lanes, bytes += sizeof lanes) {
    uint64_t words[4];
    std::memcpy(words, bytes, sizeof words);
    for (int i = 0; i < 4; ++i) {
      lanes[i] = (lanes[i] ^ words[i]) * kOdd;
      lanes[i] ^= lanes[i] >> 32;
    }
  }
  uint64_t tail[4] = {};
  if (left > 0) std::memcpy(tail, bytes, left);
  uint64_t hash = values.nbytes();
  for (int i = 0; i < 4; ++i) {
    hash = (hash ^ lanes[i] ^ tail[i]) * kOdd;
    hash ^= hash >> 32;
  }
  return hash;
}

std::string ranks_with(const at::Tensor& hashes, int64_t column, int64_t value) {
  std::vector<int64_t> ranks;
  const int64_t* data = hashes.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < hashes.size(0); ++r) {
    if (data[r * hashes.size(1) + column] == value) ranks.push_back(r);
  }
  return joined(ranks);
}

}  // namespace

void check_equal_values(Communicator& comm, const NamedTensorList& tensors) {
  const at::Tensor own = at::empty({1, static_cast<int64_t>(tensors.size())}, at::kLong);
  const at::Tensor all = at::empty({1, 1}, at::kLong);
  auto* hashes = own.mutable_data_ptr<int64_t>();
  uint64_t together = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t hash = hash_values(tensors[i].second);
    hashes[i] = static_cast<int64_t>(hash);
    together = (together ^ hash) * 0x9e3779b97f4a7c15ULL + 1;
  }
  *all.mutable_data_ptr<int64_t>() = static_cast<int64_t>(together);
  const at::Tensor everybodys = comm.all_gather(all);
  if (everybodys.eq(everybodys[0]).all().item<bool>()) return;
  // Rare: now each tensor, to name the first.
  const at::Tensor each = comm.all_gather(own);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto column = static_cast<int64_t>(i);
    const int64_t first = each.const_data_ptr<int64_t>()[i];
    for (int r = 1; r < comm.size(); ++r) {
      const int64_t other = each.const_data_ptr<int64_t>()[r * each.size(1) + column];
      if (other == first) continue;
      throw Mismatch("the ranks' models have drifted apart: '" + tensors[i].first +
                     "' is one thing on ranks " + ranks_with(each, column, first) +
                     " and another on ranks " + ranks_with(each, column, other) +
                     "; every rank must take the same steps");
    }
  }
}

void check_same_on_all_ranks(Communicator& comm, const NamedTensorList& tensors) {
  const auto all = gather_lines(comm, describe_tensors(tensors));
  for (int r = 1; r < comm.size(); ++r) {
    if (all[r] == all[0]) continue;
    const size_t common = std::min(all[0].size(), all[r].size());
    size_t i = 0;
    while (i < common && all[0][i] == all[r][i]) ++i;
    const auto entry = [i](const std::vector<std::string>& lines) {
      return i < lines.size()
                 ? lines[i]
                 : "nothing (it has " + std::to_string(lines.size()) + " parameters and buffers)";
    };
    throw Mismatch("the ranks' models differ: parameter or buffer " + std::to_string(i) + " is " +
                   entry(all[0]) + " on rank 0 but " + entry(all[r]) + " on rank " +
                   std::to_string(r) + "; build the same model on every rank");
  }
}

void broadcast_tensors(Communicator& comm, const NamedTensorList& tensors, int root) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    if (is_supported_dtype(tensor.scalar_type())) {
      comm.broadcast(tensor.detach(), root);
    } else {
      throw InvalidArgument("'" + name + "' has dtype " + c10::toString(tensor.scalar_type()) +
                            ", which collectives do not carry");
    }
  }
}

}  // namespace lockstep
