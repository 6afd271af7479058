#include "lockstep/parallel/zero/internal/host_copy.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/pages.h"

namespace lockstep::internal {
namespace {

void check_copies(std::span<const int> copies, std::span<const int> hosts) {
  if (copies.size() != hosts.size())
    throw InvalidArgument("ZeroOptimizer: copies has " + std::to_string(copies.size()) +
                          " numbers for " + std::to_string(hosts.size()) + " ranks");
  for (size_t r = 0; r < hosts.size(); ++r) {
    const auto first =
        static_cast<size_t>(std::find(copies.begin(), copies.end(), copies[r]) - copies.begin());
    if (hosts[r] == hosts[first]) continue;
    throw InvalidArgument("ZeroOptimizer: ranks " + std::to_string(first) + " and " +
                          std::to_string(r) + " are to share a copy and are on different hosts");
  }
}

}  // namespace

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

std::unique_ptr<HostCopy> HostCopy::make(Communicator& comm, std::span<const int> copies) {
  if (!comm.capabilities().device.is_cpu()) {
    if (!copies.empty())
      throw InvalidArgument(
          "ZeroOptimizer: copies are shared in the memory of a host; the parameters lie on " +
          comm.capabilities().device.str() + ": leave them out");
    const std::vector<int> each(static_cast<size_t>(comm.size()), 1);
    return std::unique_ptr<HostCopy>(new HostCopy(comm, each, comm.rank(), true, false));
  }
  if (!comm.capabilities().shared_memory) return nullptr;
  const at::Tensor all = comm.all_gather(at::full({1}, comm.node_rank(), at::kInt));
  const std::span<const int> hosts(all.const_data_ptr<int>(), static_cast<size_t>(all.numel()));
  if (!copies.empty()) check_copies(copies, hosts);
  std::optional<std::vector<int>> ranks = ranks_by_host(copies.empty() ? hosts : copies);
  if (!ranks) return nullptr;
  int host = 0, first = 0;
  for (; first + (*ranks)[static_cast<size_t>(host)] <= comm.rank(); ++host)
    first += (*ranks)[static_cast<size_t>(host)];
  return std::unique_ptr<HostCopy>(
      new HostCopy(comm, std::move(*ranks), host, comm.rank() == first, !copies.empty()));
}

HostCopy::HostCopy(Communicator& comm, std::vector<int> ranks, int host, bool first,
                   bool own_copies)
    : comm_(comm),
      ranks_(std::move(ranks)),
      own_copies_(own_copies),
      host_(host),
      first_of_host_(first),
      device_(!comm.capabilities().device.is_cpu()) {
  if (ranks_.size() == 1) return;
  if (device_) {
    // Of its own: when a gradient's bucket is complete is each rank's matter, and fetches come in between.
    between_ = comm_.duplicate();
    return;
  }
  between_ = comm_.split(first_of_host_ ? 0 : -1);
  inside_ = comm_.split(host_);
}

int64_t HostCopy::first_rank() const {
  return std::accumulate(ranks_.begin(), ranks_.begin() + host_, int64_t{0});
}

at::Tensor HostCopy::empty(int64_t numel, at::ScalarType dtype, bool comes_and_goes) {
  if (device_ && comes_and_goes)
    return at::zeros({numel}, at::TensorOptions(dtype).device(comm_.capabilities().device));
  if (device_) return comm_.symmetric_empty({numel}, dtype).zero_();
  // The whole group's call tells every rank where one has no memory left.
  return own_copies_ && inside_ ? inside_->shared_empty({numel}, dtype)
                                : comm_.shared_empty({numel}, dtype);
}

void HostCopy::spread(std::span<const at::Tensor> flats) {
  if (between_) {
    for (const at::Tensor& flat : flats) between_->broadcast(flat, 0);
  }
  if (!device_) comm_.barrier();
}

std::pair<int64_t, int64_t> HostCopy::own_range(const at::Tensor& flat) const {
  const int64_t part = flat.numel() / comm_.size();
  const int64_t begin = first_rank() * part;
  return {begin, begin + sharers() * part};
}

KeptFlat HostCopy::keep(const at::Tensor& flat) const {
  const auto [begin, end] = own_range(flat);
  const at::Tensor own = flat.narrow(0, begin, end - begin);
  return {flat, device_ ? own.clone() : own};
}

void HostCopy::take_back(const KeptFlat& flat) const {
  if (!device_) return;  // it is a part of the whole
  const auto [begin, end] = own_range(flat.whole);
  flat.own.copy_(flat.whole.narrow(0, begin, end - begin));
}

std::vector<Work> HostCopy::start_fetch(std::span<const KeptFlat> flats, const std::string& what) {
  std::vector<Work> works;
  if (!between_) return works;
  if (!what.empty())
    works.push_back(
        between_->iall_reduce(at::zeros({1}, at::kByte), ReduceOp::kMax, call_note(what)));
  for (const auto& [whole, own] : flats) {
    if (device_) {  // all parts are equal, and no memory is taken for the way
      works.push_back(between_->iall_gather(whole, own));
      continue;
    }
    const int64_t part = whole.numel() / comm_.size();
    std::vector<int64_t> counts;
    for (const int n : ranks_) counts.push_back(n * part);
    works.push_back(between_->iall_gatherv(whole, own, counts));
  }
  return works;
}

void HostCopy::publish(std::span<const at::Tensor> flats) {
  if (!device_) comm_.barrier();
  if (ranks_.size() == 1) return;
  std::vector<KeptFlat> kept;
  for (const at::Tensor& flat : flats) {
    const auto [begin, end] = own_range(flat);
    kept.push_back({flat, flat.narrow(0, begin, end - begin)});
  }
  for (Work& work : start_fetch(kept, "")) work.wait();
  if (!device_) comm_.barrier();
}

void HostCopy::meet(const std::string& what, uint64_t way) {
  if (!inside_) return;
  CallNote note = call_note(what);
  note.key = (note.key ^ way) | 1;
  try {
    inside_->iall_reduce(at::zeros({1}, at::kByte), ReduceOp::kMax, note).wait();
  } catch (const std::exception& error) {
    abort(error.what());
    throw;
  }
}

// The storage stays, so that views which autograd has saved find the memory of the next time.
void HostCopy::claim(const at::Tensor& flat) const {
  if (!device_) return;
  const c10::DeviceGuard there(flat.device());
  c10::StorageImpl* const storage = flat.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(
      c10::GetAllocator(flat.device().type())->allocate(storage->nbytes()));
}

void HostCopy::release(const at::Tensor& flat) const noexcept {
  if (device_) {
    flat.storage().unsafeGetStorageImpl()->set_data_ptr_noswap({nullptr, flat.device()});
    return;
  }
  auto* const data = static_cast<char*>(flat.mutable_data_ptr());
  const auto [begin, end] = own_range(flat);
  const auto size = static_cast<int64_t>(flat.element_size());
  release_pages(data, static_cast<size_t>(begin * size));
  release_pages(data + end * size, static_cast<size_t>((flat.numel() - end) * size));
}

void HostCopy::abort(const std::string& reason) noexcept {
  if (between_) between_->abort(reason);
  if (inside_) inside_->abort(reason);
}

}  // namespace lockstep::internal
