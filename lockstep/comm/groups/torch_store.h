// TorchStore: a client of PyTorch's TCPStore, through which torchrun's workers find each other. Not
// a public header.
#pragma once

#include <memory>
#include <string>

#include "lockstep/core/deadline.h"
#include "lockstep/core/net.h"

namespace lockstep::inline v0 {

class TorchStore {
 public:
  // Connects to the TCPStore at `address`, or serves it there.
  // Throws: Timeout, StoreError.
  TorchStore(const HostPort& address, bool serve, Deadline deadline);
  ~TorchStore();

  void set(const std::string& key, const std::string& value);
  // Waits for the key.
  // Throws: Timeout.
  std::string get(const std::string& key, Deadline deadline);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::inline v0
