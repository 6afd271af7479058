// Election: decides through a key-value service which agent leads. Pure: it is told the time and
// the service's answers, and returns the next request.
//
// The leader holds a key that is bound to a lease, so that the key goes when its holder no longer
// renews the lease. The number of each generation is written on the condition that the key is still
// the holder's: of two agents that believe to lead, only one can form a generation. While the
// service cannot be reached, nothing new begins; ranks run on unless others may begin (overdue()).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace lockstep::inline v0::launch {

class Election {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Options {
    std::chrono::milliseconds lease{10'000};
    std::chrono::milliseconds pause{500};  // between two looks
    // For a service that has never answered; a refusal as the first answer is final.
    std::chrono::milliseconds give_up{10'000};
  };

  struct Request {
    enum class Kind {
      kLook,       // find the leader
      kCampaign,   // take the key for value, with a lease, if it has no holder
      kKeepAlive,  // renew the lease
      kClaim,      // write the generation, if the key still has the revision
      kResign,     // remove the key and the generation if it has, and the lease
    };
    Kind kind = Kind::kLook;
    std::string value = {};
    int64_t lease = 0, revision = 0;
    int generation = -1;
  };

  struct Answer {
    bool reached = false;     // the service has answered
    bool refused = false;     // and would do nothing for this agent, e.g. for a wrong password
    std::string error = {};   // why it was not reached, or refuses
    bool granted = false;     // the request was carried out
    std::string leader = {};  // kLook, kCampaign: the leader's value; "": there is none
    int64_t lease = 0, revision = 0;  // kCampaign
    int newest = -1;                  // kLook, kCampaign, kClaim: the newest generation; -1: none
  };

  Election(const Options& options, Time now);

  // The next request; nullopt while an answer is pending.
  std::optional<Request> next(Time now);
  void on_answer(const Answer& answer, Time now);
  Time next_time() const { return ask_at_; }

  // Tries to lead, as `value`.
  void stand(const std::string& value, Time now);
  // Looks for the leader again, from the beginning.
  void look(Time now);
  // Writes the generation's number: see claimed().
  void claim(int generation, Time now);
  // The job is over.
  void resign(Time now);

  // Whether resigning is not complete.
  bool resigning() const { return standing_ == Standing::kResigned && lease_ != 0; }

  enum class Standing { kLooking, kCandidate, kLeading, kDeposed, kResigned };
  Standing standing() const { return standing_; }
  // While it leads: whether the lease may have run out, since it was not renewed, so that another
  // agent may lead.
  bool overdue(Time now) const {
    return standing_ == Standing::kLeading && now >= renew_at_ + options_.lease * 2 / 3;
  }
  // While it looks: the leader, as last seen; "": there is none, or it is unknown.
  const std::string& leader() const { return leader_; }
  // While it looks: whether there is no leader.
  bool vacant() const { return vacant_; }
  int newest() const { return newest_; }
  // The answer to the claim of that generation, once.
  std::optional<bool> take_claimed(int generation);
  // Why the service is of no use any more; "": it is.
  const std::string& hopeless() const { return hopeless_; }
  // Why the last request was not answered; "": it was.
  const std::string& trouble() const { return trouble_; }

 private:
  const Options options_;
  Standing standing_ = Standing::kLooking;
  const Time began_;
  Time ask_at_;
  Time renew_at_{};
  std::optional<Request> asked_;  // and not answered
  std::string value_;
  std::string leader_;
  bool vacant_ = false;
  bool answered_ = false;  // at least once, other than to refuse
  int64_t lease_ = 0, revision_ = 0;
  int newest_ = -1;
  std::optional<int> claim_;
  std::optional<std::pair<int, bool>> claimed_;  // the generation, and whether it was granted
  std::string hopeless_, trouble_;
};

}  // namespace lockstep::inline v0::launch
