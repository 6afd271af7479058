// Election: which agent leads, where a key-value service decides it. Pure: it is told the time and
// the service's answers, and returns what to ask.
//
// Who leads holds a key that is bound to a lease, so that it goes when its holder no longer renews
// it. The number of each generation is written on the condition that the key is still the
// holder's, so that of two agents that believe to lead only one can form a generation. While the
// service cannot be reached, what runs goes on; nothing new begins.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace lockstep::launch {

class Election {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Options {
    std::chrono::milliseconds lease{10'000};
    std::chrono::milliseconds pause{500};       // between two looks
    std::chrono::milliseconds give_up{10'000};  // on a service that has never answered; a refusal
                                                // as the first answer is one for good
  };

  struct Request {
    enum class Kind {
      kLook,       // who leads
      kCampaign,   // take the key for value, with a lease, if nobody has it
      kKeepAlive,  // renew the lease
      kClaim,      // write the generation, if the key is still that of the revision
      kResign,     // remove the key and the generation if it is, and the lease
    };
    Kind kind = Kind::kLook;
    std::string value = {};
    int64_t lease = 0, revision = 0;
    int generation = -1;
  };

  struct Answer {
    bool reached = false;             // the service has answered
    bool refused = false;             // and would do nothing for this agent: a wrong password
    std::string error = {};           // why it was not reached, or refuses
    bool granted = false;             // what was asked for was done
    std::string leader = {};          // kLook, kCampaign: the value of who leads; "": nobody does
    int64_t lease = 0, revision = 0;  // kCampaign
    int newest = -1;  // kLook, kCampaign, kClaim: the newest generation that was formed; -1: none
  };

  Election(const Options& options, Time now);

  // What is to be asked now; nothing while an answer is awaited.
  std::optional<Request> next(Time now);
  void on_answer(const Answer& answer, Time now);
  Time next_time() const { return ask_at_; }

  // Tries to lead, as `value`.
  void stand(const std::string& value, Time now);
  // Looks again for who leads, from the beginning.
  void look(Time now);
  // Writes the generation's number: see claimed().
  void claim(int generation, Time now);
  // The job is over.
  void resign(Time now);

  // Not done with that.
  bool resigning() const { return standing_ == Standing::kResigned && lease_ != 0; }

  enum class Standing { kLooking, kCandidate, kLeading, kDeposed, kResigned };
  Standing standing() const { return standing_; }
  // While it looks: who leads, as was just seen; "": nobody does, or it is not known.
  const std::string& leader() const { return leader_; }
  // While it looks: nobody leads.
  bool vacant() const { return vacant_; }
  int newest() const { return newest_; }
  // The answer to the claim of that generation, once.
  std::optional<bool> take_claimed(int generation);
  // Why nothing can be had of the service any more; "": it can.
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
  bool answered_ = false;  // ever, and not to refuse
  int64_t lease_ = 0, revision_ = 0;
  int newest_ = -1;
  std::optional<int> claim_;
  std::optional<std::pair<int, bool>> claimed_;  // the generation, and whether it was granted
  std::string hopeless_, trouble_;
};

}  // namespace lockstep::launch
