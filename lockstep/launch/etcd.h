// EtcdElection: an Election that etcd decides, over its JSON gateway and libcurl, which is loaded
// when it is needed.
#pragma once

#include <memory>
#include <string>

#include "lockstep/launch/election.h"
#include "lockstep/launch/launch_options.h"
#include "lockstep/launch/poll_set.h"

namespace lockstep::inline v0::launch {

// Sends requests from a thread of its own, since libcurl blocks.
// Thread-safety: one thread at a time.
class EtcdElection {
 public:
  // Throws InvalidArgument (files that cannot be read), LaunchError (no libcurl).
  EtcdElection(const EtcdAccess& access, const std::string& run_id,
               std::chrono::milliseconds silence, std::chrono::milliseconds join_timeout);
  ~EtcdElection();
  EtcdElection(const EtcdElection&) = delete;
  EtcdElection& operator=(const EtcdElection&) = delete;

  Election& election() { return election_; }
  // "etcd at 10.0.0.1:2379", for messages.
  const std::string& name() const { return name_; }
  // Sends the next request, and makes `polls` wake for the answer.
  void watch(PollSet& polls);

 private:
  class Worker;
  void ask_and_hear();

  Election election_;
  std::string name_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace lockstep::inline v0::launch
