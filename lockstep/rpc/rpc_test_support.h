// Several agents in one process, for the tests of this room.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "lockstep/rpc/agent.h"
#include "lockstep/store/hash_store.h"

namespace lockstep::inline v0::rpc {

// The text of the exception that `fn` throws.
template <typename F>
std::string message_of(F body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// Agents that find each other in one store.
class Town {
 public:
  Agent agent(const std::string& name, Registry registry = {}, AgentOptions options = {}) const {
    options.secret = secret_;
    return init(name, store_, std::move(registry), std::move(options));
  }
  const std::shared_ptr<Store>& store() const { return store_; }

 private:
  std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
  Secret secret_ = Secret::generate();
};

}  // namespace lockstep::inline v0::rpc
