// TcpStore: a store served by one process over TCP. Client and server prove the job's secret to
// each other by an HMAC challenge before any other byte is exchanged (core/secret.h); the traffic
// itself is not encrypted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/core/export.h"
#include "lockstep/core/net.h"
#include "lockstep/core/secret.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

// Serves the values from a thread of its own until it is destroyed; waiting clients then get
// StoreError.
class LOCKSTEP_API TcpStoreServer {
 public:
  // Listens on a numeric address; port 0 lets the system choose.
  // Throws: SystemError when the address cannot be bound.
  TcpStoreServer(const HostPort& address, const Secret& secret);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  // The address that it listens on, with the port that the system chose.
  HostPort address() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// One connection.
// Thread-safety: any thread. A waiting thread does not block the others: it polls through a
// connection of its own, or the server parks its request.
class LOCKSTEP_API TcpStore final : public Store {
 public:
  // Connects and authenticates, waiting for the server to come up.
  // Throws: Timeout or StoreError.
  TcpStore(const HostPort& server, const Secret& secret, Deadline deadline);
  ~TcpStore() override;

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Deadline deadline) override;
  std::optional<std::string> try_get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t delta) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;
  bool remove(const std::string& key) override;
  void offer(const std::string& key, const std::string& value, Deadline answer) override;
  std::optional<std::string> peek(const std::string& key, Deadline answer) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::inline v0
