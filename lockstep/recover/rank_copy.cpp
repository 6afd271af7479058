#include "lockstep/recover/rank_copy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <torch/nn/module.h>

#include <cstring>
#include <span>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/recover/holders.h"

namespace lockstep::inline v0::recover {
namespace {

at::Tensor bytes_of(int64_t count) {
  return at::empty({count}, at::kByte);
}

// The layout: [bytes of the generator] [bytes of extra] generator, extra, buffers.
constexpr size_t kHead = 2 * sizeof(int64_t);

class Writer {
 public:
  explicit Writer(uint8_t* at) : at_(at) {}
  void put(const void* data, size_t count) {
    if (count > 0) std::memcpy(at_, data, count);
    at_ += count;
  }

 private:
  uint8_t* at_;
};

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : left_(bytes) {}
  void get(void* data, size_t count) {
    if (count > left_.size()) throw DataError("recovery: a rank's copy is too short");
    if (count > 0) std::memcpy(data, left_.data(), count);
    left_ = left_.subspan(count);
  }
  size_t left() const { return left_.size(); }

 private:
  std::span<const uint8_t> left_;
};

}  // namespace

std::vector<at::Tensor> buffers_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> buffers;
  for (const auto& [name, buffer] : to_named_tensors(model.named_buffers()))
    buffers.push_back(buffer);
  return buffers;
}

at::Tensor pack(const RankState& state) {
  size_t size = kHead + state.generator.nbytes() + state.extra.size();
  for (const at::Tensor& buffer : state.buffers) size += buffer.nbytes();
  at::Tensor bytes = bytes_of(static_cast<int64_t>(size));
  Writer writer(bytes.mutable_data_ptr<uint8_t>());
  const int64_t head[] = {static_cast<int64_t>(state.generator.nbytes()),
                          static_cast<int64_t>(state.extra.size())};
  writer.put(head, sizeof head);
  writer.put(state.generator.const_data_ptr(), state.generator.nbytes());
  writer.put(state.extra.data(), state.extra.size());
  for (const at::Tensor& buffer : state.buffers) {
    const at::Tensor dense = buffer.cpu().contiguous();
    writer.put(dense.const_data_ptr(), dense.nbytes());
  }
  return bytes;
}

RankState unpack(const at::Tensor& bytes, const std::vector<at::Tensor>& like) {
  Reader reader({bytes.const_data_ptr<uint8_t>(), static_cast<size_t>(bytes.numel())});
  int64_t head[2] = {};
  reader.get(head, sizeof head);
  for (const int64_t length : head) {
    if (length < 0 || static_cast<size_t>(length) > reader.left())
      throw DataError("recovery: a rank's copy is damaged");
  }
  RankState state;
  state.generator = bytes_of(head[0]);
  reader.get(state.generator.mutable_data_ptr(), static_cast<size_t>(head[0]));
  state.extra.resize(static_cast<size_t>(head[1]));
  reader.get(state.extra.data(), state.extra.size());
  for (const at::Tensor& buffer : like) {
    at::Tensor copy = at::empty(buffer.sizes(), buffer.options().device(at::kCPU));
    reader.get(copy.mutable_data_ptr(), copy.nbytes());
    state.buffers.push_back(std::move(copy));
  }
  if (reader.left() > 0) throw DataError("recovery: a rank's copy is of another model");
  return state;
}

Copies exchange_copies(Communicator& comm, const at::Tensor& own, int local) {
  const std::vector<int> holders = replica_holders(comm.rank(), comm.size(), local);
  // Neighbours keep each other's copies. Lengths are sent first, because a caller's own part may
  // grow.
  const at::Tensor length = at::empty({1}, at::kLong);
  *length.mutable_data_ptr<int64_t>() = own.numel();
  std::map<int, at::Tensor> lengths;
  std::vector<Work> pending;
  for (const int k : holders) {
    pending.push_back(comm.isend(length, k));
    pending.push_back(comm.irecv(lengths[k] = at::empty({1}, at::kLong), k));
  }
  for (Work& work : pending) work.wait();
  pending.clear();
  Copies copies;
  for (const int k : holders) {
    pending.push_back(comm.isend(own, k));
    pending.push_back(comm.irecv(copies[k] = bytes_of(*lengths[k].const_data_ptr<int64_t>()), k));
  }
  for (Work& work : pending) work.wait();
  return copies;
}

void send_copy(Communicator& comm, const at::Tensor& copy, int to) {
  comm.send(at::full({1}, copy.numel(), at::kLong), to);
  comm.send(copy, to);
}

at::Tensor receive_copy(Communicator& comm, int from) {
  const at::Tensor length = at::empty({1}, at::kLong);
  comm.recv(length, from);
  at::Tensor copy = bytes_of(*length.const_data_ptr<int64_t>());
  comm.recv(copy, from);
  return copy;
}

}  // namespace lockstep::inline v0::recover
