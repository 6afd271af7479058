#include "lockstep/parallel/zero/internal/host_copy.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/comm/work.h"

namespace lockstep::internal {

std::optional<std::vector<int>> ranks_by_host(std::span<const int> hosts) {
  std::vector<int> ranks, seen;
  for (size_t r = 0; r < hosts.size(); ++r) {
    if (r > 0 && hosts[r] == hosts[r - 1]) {
      ++ranks.back();
      continue;
    }
    if (std::find(seen.begin(), seen.end(), hosts[r]) != seen.end()) return std::nullopt;
    seen.push_back(hosts[r]);
    ranks.push_back(1);
  }
  return ranks;
}

std::unique_ptr<HostCopy> HostCopy::make(Communicator& comm) {
  if (!comm.capabilities().shared_memory) return nullptr;
  const at::Tensor all = comm.all_gather(at::full({1}, comm.node_rank(), at::kInt));
  const std::span<const int> hosts(all.const_data_ptr<int>(), static_cast<size_t>(all.numel()));
  std::optional<std::vector<int>> ranks = ranks_by_host(hosts);
  if (!ranks) return nullptr;
  int host = 0, first = 0;
  for (; first + (*ranks)[static_cast<size_t>(host)] <= comm.rank(); ++host)
    first += (*ranks)[static_cast<size_t>(host)];
  return std::unique_ptr<HostCopy>(
      new HostCopy(comm, std::move(*ranks), host, comm.rank() == first));
}

HostCopy::HostCopy(Communicator& comm, std::vector<int> ranks, int host, bool first)
    : comm_(comm), ranks_(std::move(ranks)), host_(host), first_of_host_(first) {
  if (ranks_.size() > 1) between_ = comm_.split(first_of_host_ ? 0 : -1);
}

at::Tensor HostCopy::empty(int64_t numel, at::ScalarType dtype) {
  return comm_.shared_empty({numel}, dtype);
}

void HostCopy::spread(std::span<const at::Tensor> flats) {
  if (between_) {
    for (const at::Tensor& flat : flats) between_->broadcast(flat, 0);
  }
  comm_.barrier();
}

void HostCopy::publish(std::span<const at::Tensor> flats) {
  comm_.barrier();
  if (ranks_.size() == 1) return;
  if (between_) {
    const auto host = static_cast<size_t>(host_);
    const int64_t before = std::accumulate(ranks_.begin(), ranks_.begin() + host_, int64_t{0});
    std::vector<Work> works;
    for (const at::Tensor& flat : flats) {
      const int64_t part = flat.numel() / comm_.size();
      std::vector<int64_t> counts;
      for (const int n : ranks_) counts.push_back(n * part);
      works.push_back(
          between_->iall_gatherv(flat, flat.narrow(0, before * part, counts[host]), counts));
    }
    for (Work& work : works) work.wait();
  }
  comm_.barrier();
}

}  // namespace lockstep::internal
