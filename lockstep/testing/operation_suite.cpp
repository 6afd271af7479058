#include "lockstep/testing/operation_suite.h"

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "lockstep/comm/algorithms/ring.h"
#include "lockstep/testing/exact.h"

namespace lockstep::inline v0::testing {
namespace {

const std::vector<at::ScalarType> kAllDtypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                                at::kChar,  at::kShort,  at::kInt,  at::kLong,
                                                at::kByte,  at::kBool};

class Suite {
 public:
  Suite(Communicator& comm, const SuiteOptions& options) : comm_(comm), options_(options) {}

  SuiteReport run() {
    const auto& dtypes = options_.dtypes.empty() ? kAllDtypes : options_.dtypes;
    comm_.barrier();
    comm_.ibarrier().wait();
    for (const at::ScalarType dtype : dtypes) {
      dtype_ = dtype;
      std::vector<int64_t> sizes = options_.sizes;
      if (options_.long_bytes > 0)
        sizes.push_back(options_.long_bytes / static_cast<int64_t>(c10::elementSize(dtype)) + 1);
      for (const int64_t size : sizes) {
        size_ = size;
        reductions();
        movements();
        unequal();
        messages();
      }
    }
    return std::move(report_);
  }

 private:
  int size() const { return comm_.size(); }
  int rank() const { return comm_.rank(); }
  std::vector<int> roots() const {
    std::vector<int> all;
    for (int r = options_.every_root ? 0 : size() - 1; r < size(); ++r) all.push_back(r);
    return all;
  }
  at::Tensor input(int of, int64_t count, ReduceOp op = ReduceOp::kSum) const {
    return exact_input(of, count, dtype_, op).to(options_.device);
  }
  std::vector<at::Tensor> inputs(int64_t count) const {
    std::vector<at::Tensor> all;
    for (int r = 0; r < size(); ++r) all.push_back(input(r, count));
    return all;
  }
  at::Tensor result(int64_t count, ReduceOp op) const {
    return exact_result(size(), count, dtype_, op).to(options_.device);
  }
  // The same values in memory with gaps.
  static at::Tensor strided(const at::Tensor& tensor) {
    const at::Tensor wide = at::zeros({tensor.numel(), 2}, tensor.options());
    wide.select(1, 1).copy_(tensor);
    return wide.select(1, 1);
  }

  void expect(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
    ++report_.checked;
    if (got.sizes() == expected.sizes() && got.scalar_type() == expected.scalar_type() &&
        got.equal(expected))
      return;
    std::ostringstream text;
    text << "rank " << rank() << "/" << size() << ": " << what << " " << dtype_name(dtype_) << " x "
         << size_ << ": ";
    if (got.sizes() != expected.sizes()) {
      text << "shape " << got.sizes() << ", expected " << expected.sizes();
    } else {
      const at::Tensor wrong = got.ne(expected).view({-1}).nonzero();
      const int64_t at = wrong.numel() > 0 ? wrong.select(0, 0).item<int64_t>() : 0;
      text << wrong.numel() << " elements differ, the first is [" << at
           << "] = " << got.reshape({-1})[at].item<double>() << ", expected "
           << expected.reshape({-1})[at].item<double>();
    }
    if (report_.failures.size() < 50) report_.failures.push_back(text.str());
  }

  void reductions() {
    for (int i = 0; i < kReduceOpCount; ++i) {
      const auto op = static_cast<ReduceOp>(i);
      if (!is_valid_reduction(op, dtype_)) continue;
      const std::string name = std::string(" ") + to_string(op);
      const at::Tensor expected = result(size_, op);
      const at::Tensor mine = input(rank(), size_, op);

      at::Tensor t = mine.clone();
      comm_.all_reduce(t, op);
      expect(t, expected, "all_reduce" + name);
      t = strided(mine);
      comm_.iall_reduce(t, op).wait();
      expect(t, expected, "iall_reduce strided" + name);
      if (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
        t = mine.clone();
        algorithms::ring_all_reduce(comm_, t, op);
        expect(t, expected, "ring_all_reduce" + name);
        t = strided(mine);
        algorithms::naive_ring_all_reduce(comm_, t, op);
        expect(t, expected, "naive_ring_all_reduce" + name);
      }
      for (const int root : roots()) {
        t = root % 2 == 0 ? mine.clone() : strided(mine);
        comm_.reduce(t, root, op);
        expect(t, rank() == root ? expected : mine, "reduce root " + std::to_string(root) + name);
      }
      const at::Tensor whole = input(rank(), size_ * size(), op);
      const at::Tensor sums = result(size_ * size(), op);
      expect(comm_.reduce_scatter(whole, op), sums.narrow(0, rank() * size_, size_),
             "reduce_scatter" + name);
    }
  }

  void movements() {
    const std::vector<at::Tensor> all = inputs(size_);
    const at::Tensor& mine = all[rank()];
    const at::Tensor together = at::cat(all);
    for (const int root : roots()) {
      const std::string name = " root " + std::to_string(root);
      at::Tensor t = mine.clone();
      comm_.broadcast(t, root);
      expect(t, all[root], "broadcast" + name);
      t = strided(mine);
      comm_.ibroadcast(t, root).wait();
      expect(t, all[root], "ibroadcast strided" + name);

      const at::Tensor gathered = comm_.gather(mine, root);
      if (rank() == root)
        expect(gathered, together, "gather" + name);
      else if (gathered.defined())
        report_.failures.push_back("gather gave a tensor to rank " + std::to_string(rank()));

      const at::Tensor out = at::zeros_like(mine);
      comm_.scatter(out, rank() == root ? together : at::Tensor(), root);
      expect(out, mine, "scatter" + name);
    }
    expect(comm_.all_gather(mine), together, "all_gather");
    expect(comm_.all_gather(strided(mine)), together, "all_gather strided");
    const at::Tensor all_parts = at::zeros_like(together);
    const at::Tensor own_part = all_parts.narrow(0, rank() * size_, size_);
    own_part.copy_(mine);
    comm_.iall_gather(all_parts, own_part).wait();
    expect(all_parts, together, "iall_gather in place");
    // Row r of my input goes to rank r: rank r ends with row r of all ranks.
    const at::Tensor whole = input(rank(), size_ * size()).view({size(), size_});
    std::vector<at::Tensor> expected;
    for (const at::Tensor& other : inputs(size_ * size()))
      expected.push_back(other.view({size(), size_}).narrow(0, rank(), 1));
    expect(comm_.all_to_all(whole), at::cat(expected), "all_to_all");
  }

  // Rank r has size_ + r rows, and 0 where r is 1: uneven, and one empty part.
  void unequal() {
    std::vector<int64_t> counts;
    int64_t total = 0;
    for (int r = 0; r < size(); ++r) counts.push_back(r == 1 ? 0 : size_ + r);
    std::vector<at::Tensor> all;
    for (int r = 0; r < size(); ++r) all.push_back(input(r, counts[r]));
    for (const int64_t c : counts) total += c;
    const at::Tensor together = at::cat(all);
    const at::Tensor& mine = all[rank()];

    expect(comm_.all_gatherv(mine), together, "all_gatherv");
    for (const int root : roots()) {
      const at::Tensor gathered = comm_.gatherv(mine, root);
      if (rank() == root) expect(gathered, together, "gatherv");
      const at::Tensor out = at::zeros_like(mine);
      comm_.scatterv(out, rank() == root ? together : at::Tensor(), counts, root);
      expect(out, mine, "scatterv");
    }
    int64_t begin = 0;
    for (int r = 0; r < rank(); ++r) begin += counts[r];
    const at::Tensor all_parts = at::zeros_like(together);
    const at::Tensor own_part = all_parts.narrow(0, begin, counts[rank()]);
    own_part.copy_(mine);
    comm_.iall_gatherv(all_parts, own_part, counts).wait();
    expect(all_parts, together, "iall_gatherv in place");
    const at::Tensor sums = result(total, ReduceOp::kSum);
    expect(comm_.reduce_scatterv(input(rank(), total), counts),
           sums.narrow(0, begin, counts[rank()]), "reduce_scatterv");

    // Rank r sends (r + d) % 3 + size_ rows to rank d.
    const auto sent = [this](int from, int to) { return (from + to) % 3 + size_; };
    std::vector<int64_t> send_counts;
    std::vector<at::Tensor> expected;
    for (int r = 0; r < size(); ++r) send_counts.push_back(sent(rank(), r));
    const auto whole_of = [&](int from) {
      int64_t n = 0;
      for (int d = 0; d < size(); ++d) n += sent(from, d);
      return input(from, n);
    };
    for (int from = 0; from < size(); ++from) {
      int64_t at = 0;
      for (int d = 0; d < rank(); ++d) at += sent(from, d);
      expected.push_back(whole_of(from).narrow(0, at, sent(from, rank())));
    }
    expect(comm_.all_to_allv(whole_of(rank()), send_counts), at::cat(expected), "all_to_allv");
  }

  void messages() {
    if (size() < 2) return;
    const int right = (rank() + 1) % size();
    const int left = (rank() + size() - 1) % size();
    const at::Tensor mine = input(rank(), size_);
    const at::Tensor theirs = input(left, size_);
    at::Tensor got = at::zeros_like(mine);
    {
      Work receive = comm_.irecv(got, left, 3);
      Work send = comm_.isend(rank() % 2 == 0 ? mine : strided(mine), right, 3);
      send.wait();
      receive.wait();
      expect(got, theirs, "isend, irecv");
    }
    got = strided(at::zeros_like(mine));
    if (rank() % 2 == 0) {
      if (right != 0 || size() % 2 == 0) comm_.send(mine, right);
      if (left % 2 == 1) comm_.recv(got, left);
    } else {
      comm_.recv(got, left);
      if (right % 2 == 0) comm_.send(mine, right);
    }
    const bool received = rank() % 2 == 1 || left % 2 == 1;
    if (received) expect(got, theirs, "send, recv");
  }

  Communicator& comm_;
  const SuiteOptions& options_;
  SuiteReport report_;
  at::ScalarType dtype_ = at::kFloat;
  int64_t size_ = 0;
};

// Sums, and whatever else ranks hold, are integers far below 2^63.
class ApartSuite {
 public:
  ApartSuite(Communicator& comm, const ApartOptions& options) : comm_(comm), options_(options) {}

  SuiteReport run() {
    pending();
    row();
    return std::move(report_);
  }

 private:
  static constexpr int64_t kElements = 3;
  static constexpr int kGoTag = 7;

  bool is_late() const { return comm_.size() > 1 && comm_.rank() == comm_.size() - 1; }
  void await_go() {
    if (is_late()) comm_.recv(at::zeros({1}, at::kLong), 0, kGoTag);
  }
  // Rank 0 says that it has come far enough.
  void give_go() {
    if (comm_.rank() != 0 || comm_.size() == 1) return;
    go_ = at::zeros({1}, at::kLong);
    go_work_ = comm_.isend(go_, comm_.size() - 1, kGoTag);
  }
  static at::Tensor filled(int64_t value) { return at::full({kElements}, value, at::kLong); }

  void expect(int64_t got, int64_t expected, const char* what, int call) {
    ++report_.checked;
    if (got == expected || report_.failures.size() >= 50) return;
    report_.failures.push_back("rank " + std::to_string(comm_.rank()) + ": " + what + " " +
                               std::to_string(call) + " gave " + std::to_string(got) +
                               ", expected " + std::to_string(expected));
  }

  struct Started {
    Work work;
    at::Tensor result;
    std::vector<int64_t> expected;  // of every kElements elements the last
    const char* what;
  };

  static Started start(Communicator& comm, int call) {
    const int size = comm.size();
    const int root = call % size;
    const int64_t sum = int64_t{size} * (size - 1) / 2 + int64_t{size} * call;
    const at::Tensor own = filled(comm.rank() + call);
    switch (call / 2 % 5) {
      case 0:
        return {comm.iall_reduce(own), own, {sum}, "all_reduce"};
      case 1:
        return {comm.ibroadcast(own, root), own, {root + call}, "broadcast"};
      case 2:
        return {comm.ireduce(own, root),
                own,
                {comm.rank() == root ? sum : comm.rank() + call},
                "reduce"};
      case 3: {
        const at::Tensor all = at::zeros({kElements * size}, at::kLong);
        std::vector<int64_t> expected;
        for (int r = 0; r < size; ++r) expected.push_back(r + call);
        return {comm.iall_gather(all, own), all, std::move(expected), "all_gather"};
      }
      default:
        return {comm.ibarrier(), own, {comm.rank() + call}, "barrier"};
    }
  }

  // One wait, for the last, moves all.
  void pending() {
    std::vector<Communicator> comms{comm_};
    if (options_.groups) {
      comms.push_back(*comm_.split(comm_.rank() % 2));
      comms.push_back(comm_.duplicate());
    }
    await_go();
    std::vector<Started> all;
    for (int i = 0; i < options_.pending; ++i)
      all.push_back(start(comms[static_cast<size_t>(i) % comms.size()], i));
    give_go();
    for (auto one = all.rbegin(); one != all.rend(); ++one) one->work.wait();
    finish_go();
    for (int i = 0; i < options_.pending; ++i) {
      const Started& one = all[static_cast<size_t>(i)];
      const auto* values = one.result.const_data_ptr<int64_t>();
      for (size_t part = 0; part < one.expected.size(); ++part) {
        const size_t last = (part + 1) * kElements - 1;
        expect(values[last], one.expected[part], one.what, i);
      }
    }
  }

  void row() {
    const int apart = std::min(options_.apart, options_.in_a_row);
    std::vector<at::Tensor> tensors;
    std::vector<std::optional<Work>> works(static_cast<size_t>(apart));
    for (int i = 0; i < apart; ++i) tensors.push_back(filled(0));
    const auto end = [&](int call) {
      const auto slot = static_cast<size_t>(call % apart);
      works[slot]->wait();
      expect(tensors[slot].const_data_ptr<int64_t>()[kElements - 1], call, "broadcast in a row",
             call);
    };
    await_go();
    for (int i = 0; i < options_.in_a_row; ++i) {
      const auto slot = static_cast<size_t>(i % apart);
      if (i >= apart) end(i - apart);
      std::fill_n(tensors[slot].mutable_data_ptr<int64_t>(), kElements,
                  comm_.rank() == 0 ? i : int64_t{-1});
      works[slot] = comm_.ibroadcast(tensors[slot], 0);
      if (i + 1 == apart) give_go();
    }
    for (int i = options_.in_a_row - apart; i < options_.in_a_row; ++i) end(i);
    finish_go();
  }

  void finish_go() {
    if (go_work_) go_work_->wait();
    go_work_.reset();
  }

  Communicator& comm_;
  const ApartOptions& options_;
  SuiteReport report_;
  at::Tensor go_;
  std::optional<Work> go_work_;
};

}  // namespace

SuiteReport run_operation_suite(Communicator& comm, const SuiteOptions& options) {
  return Suite(comm, options).run();
}

SuiteReport run_apart_suite(Communicator& comm, const ApartOptions& options) {
  return ApartSuite(comm, options).run();
}

}  // namespace lockstep::inline v0::testing
