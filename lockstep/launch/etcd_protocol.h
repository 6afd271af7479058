// The requests to etcd's JSON gateway (version 3 of its interface), and the meaning of its answers.
// Pure.
//
// The job's keys: PREFIX/leader, bound to the leader's lease, and PREFIX/generation, "NUMBER
// REVISION": the newest generation, and the revision of its leader's key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::inline v0::launch {

// A POST request: the path below the address, and the body.
struct EtcdCall {
  std::string path;
  std::string body;
};

struct EtcdKeys {
  std::string leader, generation;
};
EtcdKeys etcd_keys(std::string_view run_id);

EtcdCall etcd_log_in(const std::string& user, const std::string& password);
EtcdCall etcd_look(const EtcdKeys& keys);
EtcdCall etcd_grant(int64_t seconds);
// Takes the leader's key if it has no holder.
EtcdCall etcd_campaign(const EtcdKeys& keys, const std::string& value, int64_t lease);
EtcdCall etcd_keep_alive(int64_t lease);
// Writes the generation's number, if the leader's key has `revision` and the number's own key still
// has `seen`.
EtcdCall etcd_claim(const EtcdKeys& keys, int generation, int64_t revision, int64_t seen);
// Removes both keys, if the leader's has `revision`.
EtcdCall etcd_remove(const EtcdKeys& keys, int64_t revision);
EtcdCall etcd_revoke(int64_t lease);

// The results of etcd_look(), etcd_campaign(), etcd_claim().
struct EtcdState {
  bool done = false;     // the transaction's condition held
  int64_t revision = 0;  // the whole store's current revision
  std::string leader;    // "": there is none
  int64_t leader_revision = 0, leader_lease = 0;
  int generation = -1;              // -1: there is none
  int64_t generation_by = 0;        // the leader's revision under which it was written
  int64_t generation_revision = 0;  // its key's revision
};

// These throw StoreError for a malformed answer.
EtcdState read_etcd_state(std::string_view answer, const EtcdKeys& keys);
std::string read_etcd_token(std::string_view answer);
int64_t read_etcd_lease(std::string_view answer);
bool read_etcd_kept_alive(std::string_view answer);

// Why etcd refused: the message of an error answer; for other answers their beginning.
struct EtcdError {
  std::string text;
  bool token_expired = false;  // logging in again helps
  bool refused = false;        // nothing helps
};
EtcdError read_etcd_error(int status, std::string_view answer);

std::string base64_encode(std::string_view bytes);
// Throws: StoreError.
std::string base64_decode(std::string_view text);

}  // namespace lockstep::inline v0::launch
