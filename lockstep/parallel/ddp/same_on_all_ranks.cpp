#include "lockstep/parallel/ddp/same_on_all_ranks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <sstream>

#include "lockstep/core/errors.h"

namespace lockstep {
namespace {

std::vector<std::string> describe_tensors(const NamedTensors& tensors) {
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

}  // namespace

void check_same_on_all_ranks(Communicator& comm, const NamedTensors& tensors) {
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

void broadcast_tensors(Communicator& comm, const NamedTensors& tensors, int root) {
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
