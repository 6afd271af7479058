// StoreService: how a store's server handles requests: it holds the values, and requests that are
// parked until their keys exist. No sockets, no threads, no clock.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/store/key_table.h"
#include "lockstep/store/store_protocol.h"

namespace lockstep::inline v0 {

// Thread-safety: one thread at a time.
class StoreService {
 public:
  using ClientId = uint64_t;
  struct Reply {
    ClientId client;
    StoreResponse response;
  };

  // The replies that the request causes, to this client and to others whose keys now exist.
  std::vector<Reply> handle(ClientId client, const StoreRequest& request);
  // Forgets the client's parked requests.
  void drop(ClientId client);

  size_t parked() const { return parked_.size(); }

 private:
  struct Parked {
    ClientId client;
    StoreRequest request;
  };

  StoreResponse apply(const StoreRequest& request, std::vector<Reply>& replies);
  void park_or_reply(Parked parked, std::vector<Reply>& replies);
  void wake(const std::string& key, std::vector<Reply>& replies);
  void cancel(ClientId client, uint64_t id, std::vector<Reply>& replies);

  KeyTable values_;
  std::multimap<std::string, Parked> parked_;  // by a key that is missing
};

}  // namespace lockstep::inline v0
