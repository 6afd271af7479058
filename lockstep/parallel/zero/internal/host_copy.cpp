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

namespace lockstep::inline v0::internal {
namespace {

// Compares whether the hosts want the same.
Work compare(Communicator& between, const std::string& what) {
  return between.iall_reduce(at::zeros({1}, at::kByte), ReduceOp::kMax, call_note(what));
}

// The copy in memory that the ranks of a host have mapped.
class InHostMemory final : public HostCopy {
 public:
  // `ranks`: the number per host; `host`: this rank's. `own_copies`: the caller's choice.
  InHostMemory(Communicator& comm, std::vector<int> ranks, int host, bool own_copies)
      : HostCopy(comm),
        ranks_(std::move(ranks)),
        own_copies_(own_copies),
        host_(host),
        first_rank_(std::accumulate(ranks_.begin(), ranks_.begin() + host, 0)) {
    if (ranks_.size() == 1) return;
    between_ = comm_.split(writes() ? 0 : -1);
    inside_ = comm_.split(host_);
  }

  bool apart() const override { return false; }
  bool writes() const override { return comm_.rank() == first_rank_; }
  int sharers() const override { return ranks_[static_cast<size_t>(host_)]; }
  int hosts() const override { return static_cast<int>(ranks_.size()); }

  at::Tensor empty(int64_t numel, at::ScalarType dtype, bool /*comes_and_goes*/) override {
    // A call of the whole group tells every rank if one has no memory left.
    return own_copies_ && inside_ ? inside_->shared_empty({numel}, dtype)
                                  : comm_.shared_empty({numel}, dtype);
  }
  void spread(std::span<const at::Tensor> flats) override {
    if (between_) {
      for (const at::Tensor& flat : flats) between_->broadcast(flat, 0);
    }
    comm_.barrier();
  }
  void publish(std::span<const at::Tensor> flats) override {
    comm_.barrier();
    if (ranks_.size() == 1) return;
    std::vector<KeptFlat> kept;
    for (const at::Tensor& flat : flats) kept.push_back(keep(flat));
    for (Work& work : start_fetch(kept, "")) work.wait();
    comm_.barrier();
  }

  KeptFlat keep(const at::Tensor& flat) const override {
    const int64_t part = flat.numel() / comm_.size();
    return {flat, flat.narrow(0, first_rank_ * part, sharers() * part)};
  }
  at::Tensor own_part(const KeptFlat& flat) const override {
    const int64_t part = flat.whole.numel() / comm_.size();
    return flat.whole.narrow(0, comm_.rank() * part, part);
  }
  std::vector<Work> start_fetch(std::span<const KeptFlat> flats, const std::string& what) override {
    std::vector<Work> works;
    if (!between_) return works;
    if (!what.empty()) works.push_back(compare(*between_, what));
    for (const auto& [whole, own] : flats) {
      const int64_t part = whole.numel() / comm_.size();
      std::vector<int64_t> counts;
      for (const int n : ranks_) counts.push_back(n * part);
      works.push_back(between_->iall_gatherv(whole, own, counts));
    }
    return works;
  }
  void meet(const std::string& what, uint64_t way) override {
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
  void release(const at::Tensor& flat) const noexcept override {
    auto* const data = static_cast<char*>(flat.mutable_data_ptr());
    const int64_t part = flat.numel() / comm_.size() * static_cast<int64_t>(flat.element_size());
    const int64_t begin = first_rank_ * part, end = begin + sharers() * part;
    release_pages(data, static_cast<size_t>(begin));
    release_pages(data + end, flat.nbytes() - static_cast<size_t>(end));
  }
  void abort(const std::string& reason) noexcept override {
    if (between_) between_->abort(reason);
    if (inside_) inside_->abort(reason);
  }

 private:
  std::vector<int> ranks_;
  bool own_copies_;
  int host_;
  int64_t first_rank_;
  // The group of the hosts' first ranks, empty on other ranks, and the group of this host. Both are
  // empty if there is one host.
  std::optional<Communicator> between_, inside_;
};

// On devices. Of C copies, each divided among H ranks, rank c * H + h keeps the h-th of H pieces of
// copy c. A piece has C of the parts that ranks update: its c-th is that rank's, and the others
// come from the ranks that keep the same piece.
class OnDevices final : public HostCopy {
 public:
  OnDevices(Communicator& comm, int copies)
      : HostCopy(comm),
        copies_(copies),
        hosts_(comm.size() / copies),
        copy_(comm.rank() / hosts_),
        host_(comm.rank() % hosts_) {
    if (hosts_ == 1) return;
    // A group of its own, since fetches interleave with reductions.
    if (copies_ == 1) {
      between_ = comm_.duplicate();
      return;
    }
    between_ = comm_.split(copy_);
    alike_ = comm_.split(host_);
    parts_ = comm_.split(0, host_ * copies_ + copy_);
  }

  bool apart() const override { return true; }
  bool writes() const override { return true; }
  int sharers() const override { return 1; }
  int hosts() const override { return hosts_; }
  int keepers() const override { return hosts_ == 1 ? 1 : copies_; }
  Communicator& parts() override { return parts_ ? *parts_ : comm_; }

  at::Tensor empty(int64_t numel, at::ScalarType dtype, bool comes_and_goes) override {
    if (comes_and_goes)
      return at::zeros({numel}, at::TensorOptions(dtype).device(comm_.capabilities().device));
    return comm_.symmetric_empty({numel}, dtype).zero_();
  }
  void spread(std::span<const at::Tensor> flats) override {
    for (const at::Tensor& flat : flats) comm_.broadcast(flat, 0);
  }
  void publish(std::span<const at::Tensor> flats) override {
    std::vector<Work> works;
    for (const at::Tensor& flat : flats) {
      const int64_t part = flat.numel() / comm_.size();
      works.push_back(parts().iall_gather(flat, flat.narrow(0, parts().rank() * part, part)));
    }
    for (Work& work : works) work.wait();
  }

  KeptFlat keep(const at::Tensor& flat) const override { return {flat, piece(flat).clone()}; }
  at::Tensor own_part(const KeptFlat& flat) const override {
    const int64_t part = flat.own.numel() / keepers();
    return flat.own.narrow(0, copy_ * part, part);
  }
  void join(std::span<const KeptFlat> flats) override {
    if (!alike_) return;
    std::vector<Work> works;
    for (const KeptFlat& flat : flats)
      works.push_back(alike_->iall_gather(flat.own, own_part(flat)));
    for (Work& work : works) work.wait();
  }
  void take_back(const KeptFlat& flat) const override { flat.own.copy_(piece(flat.whole)); }
  // All pieces are equal, so no additional memory is needed.
  std::vector<Work> start_fetch(std::span<const KeptFlat> flats, const std::string& what) override {
    std::vector<Work> works;
    if (!between_) return works;
    works.push_back(compare(*between_, what));
    for (const auto& [whole, own] : flats) works.push_back(between_->iall_gather(whole, own));
    return works;
  }
  // The storage object stays, so that views which autograd has saved find the next memory.
  void claim(const at::Tensor& flat) const override {
    const c10::DeviceGuard there(flat.device());
    c10::StorageImpl* const storage = flat.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(
        c10::GetAllocator(flat.device().type())->allocate(storage->nbytes()));
  }
  void release(const at::Tensor& flat) const noexcept override {
    flat.storage().unsafeGetStorageImpl()->set_data_ptr_noswap({nullptr, flat.device()});
  }
  void abort(const std::string& reason) noexcept override {
    if (between_) between_->abort(reason);
  }

 private:
  at::Tensor piece(const at::Tensor& flat) const {
    const int64_t numel = flat.numel() / hosts_;
    return flat.narrow(0, host_ * numel, numel);
  }

  int copies_, hosts_;
  int64_t copy_, host_;  // this rank's copy, and its place among the ranks that divide it
  // The ranks that divide this copy; those that keep the same piece of each copy; and all, by their
  // parts.
  std::optional<Communicator> between_, alike_, parts_;
};

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

// The number of copies with equally many consecutive ranks.
int count_equal(std::span<const int> copies, int ranks) {
  if (copies.empty()) return 1;
  const std::optional<std::vector<int>> sizes = ranks_by_host(copies);
  if (copies.size() != static_cast<size_t>(ranks) || !sizes ||
      std::any_of(sizes->begin(), sizes->end(), [&](int n) { return n != sizes->front(); }))
    throw InvalidArgument(
        "ZeroOptimizer: on devices copies are divided among as many ranks each, which follow each "
        "other; give a copy for each of " +
        std::to_string(ranks) + " ranks, such as 0, 0, 1, 1");
  return static_cast<int>(sizes->size());
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
  if (!comm.capabilities().device.is_cpu())
    return std::make_unique<OnDevices>(comm, count_equal(copies, comm.size()));
  if (!comm.capabilities().shared_memory) return nullptr;
  const at::Tensor all = comm.all_gather(at::full({1}, comm.node_rank(), at::kInt));
  const std::span<const int> hosts(all.const_data_ptr<int>(), static_cast<size_t>(all.numel()));
  if (!copies.empty()) check_copies(copies, hosts);
  std::optional<std::vector<int>> ranks = ranks_by_host(copies.empty() ? hosts : copies);
  if (!ranks) return nullptr;
  int host = 0, first = 0;
  for (; first + (*ranks)[static_cast<size_t>(host)] <= comm.rank(); ++host)
    first += (*ranks)[static_cast<size_t>(host)];
  return std::make_unique<InHostMemory>(comm, std::move(*ranks), host, !copies.empty());
}

}  // namespace lockstep::inline v0::internal
