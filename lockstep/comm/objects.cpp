#include "lockstep/comm/objects.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "lockstep/comm/internal/object_bytes.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

// The bytes as a tensor that does not own them.
at::Tensor view_bytes(std::vector<uint8_t>& bytes) {
  static uint8_t nothing;
  return at::from_blob(bytes.empty() ? &nothing : bytes.data(),
                       {static_cast<int64_t>(bytes.size())}, at::TensorOptions(at::kByte));
}

at::Tensor one_length(int64_t length) {
  at::Tensor tensor = at::empty({1}, at::TensorOptions(at::kLong));
  *tensor.mutable_data_ptr<int64_t>() = length;
  return tensor;
}

int64_t checked_length(int64_t length, int rank) {
  if (length >= 0 && length <= kMaxObjectBytes) return length;
  throw DataError("an object of " + std::to_string(length) + " bytes from rank " +
                  std::to_string(rank) + "; at most " + std::to_string(kMaxObjectBytes) +
                  " are allowed: did that rank send something else?");
}

// Exchanges all ranks' lengths, which must all be valid before any rank sends more.
std::vector<int64_t> exchange_lengths(Communicator& comm, int64_t mine, Communicator::Site site) {
  const at::Tensor all = comm.all_gather(one_length(mine), site);
  const auto* data = all.const_data_ptr<int64_t>();
  std::vector<int64_t> lengths(data, data + all.numel());
  for (int r = 0; r < comm.size(); ++r) checked_length(lengths[static_cast<size_t>(r)], r);
  return lengths;
}

std::vector<nlohmann::json> decode_parts(const at::Tensor& bytes,
                                         const std::vector<int64_t>& lengths) {
  std::vector<nlohmann::json> objects;
  const auto* at = bytes.const_data_ptr<uint8_t>();
  for (size_t r = 0; r < lengths.size(); ++r) {
    objects.push_back(
        decode_object({at, static_cast<size_t>(lengths[r])}, "rank " + std::to_string(r)));
    at += lengths[r];
  }
  return objects;
}

at::Tensor empty_bytes(int64_t n) {
  return at::empty({n}, at::TensorOptions(at::kByte));
}

int64_t sum(const std::vector<int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

void check_root(const char* what, int root, int size) {
  if (root >= 0 && root < size) return;
  throw InvalidArgument(std::string(what) + ": root " + std::to_string(root) +
                        " is not a rank of this group (0 to " + std::to_string(size - 1) + ")");
}

}  // namespace

void send_object(Communicator& comm, const nlohmann::json& object, int dst, int tag,
                 Communicator::Site site) {
  std::vector<uint8_t> bytes = encode_object(object);
  comm.send(one_length(static_cast<int64_t>(bytes.size())), dst, tag, site);
  comm.send(view_bytes(bytes), dst, tag, site);
}

nlohmann::json recv_object(Communicator& comm, int src, int tag, Communicator::Site site) {
  const at::Tensor length = one_length(0);
  comm.recv(length, src, tag, site);
  const at::Tensor bytes = empty_bytes(checked_length(length.item<int64_t>(), src));
  comm.recv(bytes, src, tag, site);
  return decode_object({bytes.const_data_ptr<uint8_t>(), static_cast<size_t>(bytes.numel())},
                       "rank " + std::to_string(src));
}

nlohmann::json broadcast_object(Communicator& comm, const nlohmann::json& object, int root,
                                Communicator::Site site) {
  check_root("broadcast_object", root, comm.size());
  std::vector<uint8_t> bytes;
  if (comm.rank() == root) bytes = encode_object(object);
  const at::Tensor length = one_length(static_cast<int64_t>(bytes.size()));
  comm.broadcast(length, root, site);
  bytes.resize(static_cast<size_t>(checked_length(length.item<int64_t>(), root)));
  comm.broadcast(view_bytes(bytes), root, site);
  return decode_object(bytes, "rank " + std::to_string(root));
}

nlohmann::json scatter_object(Communicator& comm, const std::vector<nlohmann::json>& objects,
                              int root, Communicator::Site site) {
  check_root("scatter_object", root, comm.size());
  std::vector<uint8_t> bytes;
  const at::Tensor lengths = at::zeros({comm.size()}, at::TensorOptions(at::kLong));
  auto* length = lengths.mutable_data_ptr<int64_t>();
  if (comm.rank() == root) {
    if (objects.size() != static_cast<size_t>(comm.size())) {
      throw InvalidArgument("scatter_object: " + std::to_string(objects.size()) + " objects for " +
                            std::to_string(comm.size()) + " ranks; give one for each");
    }
    for (size_t r = 0; r < objects.size(); ++r) {
      const std::vector<uint8_t> part = encode_object(objects[r]);
      length[r] = static_cast<int64_t>(part.size());
      bytes.insert(bytes.end(), part.begin(), part.end());
    }
  }
  comm.broadcast(lengths, root, site);
  std::vector<int64_t> counts(length, length + comm.size());
  for (const int64_t count : counts) checked_length(count, root);
  const at::Tensor mine = empty_bytes(counts[static_cast<size_t>(comm.rank())]);
  comm.scatterv(mine, comm.rank() == root ? view_bytes(bytes) : at::Tensor(), counts, root, site);
  return decode_object({mine.const_data_ptr<uint8_t>(), static_cast<size_t>(mine.numel())},
                       "rank " + std::to_string(root));
}

std::vector<nlohmann::json> gather_object(Communicator& comm, const nlohmann::json& object,
                                          int root, Communicator::Site site) {
  check_root("gather_object", root, comm.size());
  std::vector<uint8_t> bytes = encode_object(object);
  const std::vector<int64_t> lengths =
      exchange_lengths(comm, static_cast<int64_t>(bytes.size()), site);
  const at::Tensor all = comm.rank() == root ? empty_bytes(sum(lengths)) : at::Tensor();
  comm.igatherv(all, view_bytes(bytes), lengths, root, site).wait();
  return all.defined() ? decode_parts(all, lengths) : std::vector<nlohmann::json>();
}

std::vector<nlohmann::json> all_gather_object(Communicator& comm, const nlohmann::json& object,
                                              Communicator::Site site) {
  std::vector<uint8_t> bytes = encode_object(object);
  const std::vector<int64_t> lengths =
      exchange_lengths(comm, static_cast<int64_t>(bytes.size()), site);
  const at::Tensor all = empty_bytes(sum(lengths));
  comm.iall_gatherv(all, view_bytes(bytes), lengths, site).wait();
  return decode_parts(all, lengths);
}

}  // namespace lockstep::inline v0
