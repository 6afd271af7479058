#include "lockstep/comm/groups/torch_store.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

std::chrono::milliseconds left(Deadline deadline) {
  return std::max(std::chrono::milliseconds(1),
                  std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()));
}

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

class TorchStore::Impl {
 public:
  c10::intrusive_ptr<c10d::TCPStore> store;
  std::string where;
};

TorchStore::TorchStore(const HostPort& address, bool serve, Deadline deadline)
    : impl_(std::make_unique<Impl>()) {
  impl_->where = "the TCPStore at " + address.to_string() + " (MASTER_ADDR, MASTER_PORT)";
  c10d::TCPStoreOptions options;
  options.port = address.port;
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = left(deadline);
  try {
    impl_->store = c10::make_intrusive<c10d::TCPStore>(address.host, options);
  } catch (const std::exception& error) {
    throw StoreError(impl_->where + (serve ? " cannot be served: " : " cannot be reached: ") +
                     first_line(error));
  }
}

TorchStore::~TorchStore() = default;

void TorchStore::set(const std::string& key, const std::string& value) {
  try {
    impl_->store->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  } catch (const std::exception& error) {
    throw StoreError(impl_->where + ": " + first_line(error));
  }
}

std::string TorchStore::get(const std::string& key, Deadline deadline) {
  try {
    impl_->store->wait({key}, left(deadline));
    const std::vector<uint8_t> value = impl_->store->get(key);
    return {value.begin(), value.end()};
  } catch (const std::exception& error) {
    throw Timeout(impl_->where + ": rank 0 published nothing under '" + key +
                  "': " + first_line(error));
  }
}

}  // namespace lockstep::inline v0
