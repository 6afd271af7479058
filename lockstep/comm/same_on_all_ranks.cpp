#include "lockstep/comm/same_on_all_ranks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <sstream>

#include "lockstep/comm/internal/ranks_apart.h"
#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/trace/trace_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep::inline v0 {
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
  // The sizes are also needed to find where each rank's text ends, so they are exchanged once, for
  // both purposes.
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

// Hashes the bits: -0 and 0 differ, equal NaN do not.
uint64_t hash_values(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().cpu().contiguous();
  return XXH3_64bits(values.const_data_ptr(), values.nbytes());
}

std::vector<std::string> gather_host_names(Communicator& comm) {
  constexpr int64_t kMost = 64;  // HOST_NAME_MAX
  const at::Tensor mine = at::zeros({1, kMost}, at::kByte);
  const std::string name = trace::host_name();
  std::memcpy(mine.mutable_data_ptr(), name.data(),
              std::min(name.size(), static_cast<size_t>(kMost)));
  const at::Tensor all = comm.all_gather(mine);
  std::vector<std::string> names;
  for (int64_t r = 0; r < comm.size(); ++r) {
    const char* text = static_cast<const char*>(all.const_data_ptr()) + r * kMost;
    names.emplace_back(text, ::strnlen(text, kMost));
  }
  return names;
}

}  // namespace

void check_equal_values(Communicator& comm, const NamedTensorList& tensors,
                        const std::string& when) {
  const at::Tensor own = at::empty({1, static_cast<int64_t>(tensors.size())}, at::kLong);
  auto* hashes = own.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < tensors.size(); ++i)
    hashes[i] = static_cast<int64_t>(hash_values(tensors[i].second));
  const at::Tensor together = at::empty({1, 1}, at::kLong);
  *together.mutable_data_ptr<int64_t>() = static_cast<int64_t>(hash_values(own));
  const at::Tensor everybodys = comm.all_gather(together);
  if (everybodys.eq(everybodys[0]).all().item<bool>()) return;
  // Rare: compares each tensor, to name the first difference.
  const at::Tensor each = comm.all_gather(own);
  const std::vector<std::string> hosts = gather_host_names(comm);
  const std::span all(static_cast<const uint64_t*>(each.const_data_ptr()),
                      static_cast<size_t>(each.numel()));
  const auto apart = find_apart(all, tensors.size());
  LOCKSTEP_CHECK(apart.has_value(), "the hashes of all tensors differ, and none of them does");
  throw Mismatch(apart_text(*apart, tensors[apart->tensor].first, when, hosts));
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

}  // namespace lockstep::inline v0
