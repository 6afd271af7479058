#include "lockstep/comm/side_channel/twin_channel.h"

#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>

#include "lockstep/core/deadline.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"

namespace lockstep::side_channel {
namespace {

constexpr size_t kTwinDepth = 32;  // collectives shown and not yet agreed
// From when on a waiting rank says in the store where it is, and asks there what others say.
constexpr auto kTwinPatience = std::chrono::milliseconds(50);
constexpr auto kTwinLook = std::chrono::milliseconds(100);   // between two looks
constexpr auto kTwinTalk = std::chrono::milliseconds(1500);  // for all to tell their call

std::string to_bytes(const CallRecord& record) {
  return {reinterpret_cast<const char*>(&record), sizeof record};
}

std::optional<CallRecord> from_bytes(const std::string& bytes) {
  CallRecord record;
  if (bytes.size() != sizeof record) return std::nullopt;
  std::memcpy(&record, bytes.data(), sizeof record);
  return record;
}

// The number of a collective and its record, as a rank leaves it in the store.
struct Place {
  uint64_t number = 0;
  CallRecord record;
};

class TwinChannel final : public SideChannel {
 public:
  TwinChannel(std::unique_ptr<Backend> twin, std::shared_ptr<Store> store, int rank, int size)
      : twin_(std::move(twin)), store_(std::move(store)), rank_(rank), size_(size) {}

  bool publish(uint64_t number, const CallRecord& record) override {
    if (shown_.size() >= kTwinDepth) return false;
    auto shown = std::make_unique<Shown>();
    shown->place = {number, record};
    shown->since = Clock::now();
    // Maxima of x and of ~x: they belong to one x only if all ranks gave the same.
    const auto mark =
        static_cast<int64_t>(record.fingerprint ^ (record.sequence * 0x9e3779b97f4a7c15ULL));
    shown->sent = {mark, ~mark};
    Call call;
    call.op = Op::kAllReduce;
    call.dtype = at::kLong;
    call.reduce = ReduceOp::kMax;
    call.count = 2;
    call.input = call.output = reinterpret_cast<std::byte*>(shown->sent.data());
    call.sequence = number;
    shown->request = twin_->start(call);
    last_ = shown->place;
    shown_.push_back(std::move(shown));
    return true;
  }

  bool agreed(uint64_t number) override {
    if (number <= agreed_) return true;
    Shown& front = *shown_.front();
    try {
      if (!front.request->poll()) return false;
    } catch (const PeerLost&) {
      // Whoever gave up has said why, or is about to.
      const Deadline deadline = Deadline::after(kTwinTalk / 3);
      while (!deadline.expired()) {
        throw_reported();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      throw;
    }
    if (front.sent[0] != ~front.sent[1]) report_mismatch(front.place);
    shown_.pop_front();
    agreed_ = number;
    return true;
  }

  void finished(uint64_t) override {}

  void check_failed() override {
    const auto now = Clock::now();
    if (now - looked_ < kTwinLook) return;
    if (!shown_.empty() && now - shown_.front()->since < kTwinPatience) return;
    looked_ = now;
    try {
      if (last_.number != said_) {
        store_->set(key("at", rank_), std::to_string(last_.number) + ":" + to_bytes(last_.record));
        said_ = last_.number;
      }
      throw_reported();
    } catch (const StoreError&) {  // without the store the engine's own errors must do
    }
  }

  std::vector<std::string> missing(uint64_t number) const override {
    std::vector<std::string> texts;
    if (number <= agreed_) return texts;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      const std::optional<Place> place = place_of(r);
      if (!place || place->number < number) texts.push_back(whereabouts(r));
    }
    return texts;
  }

  int lost_before(uint64_t, bool) const override { return -1; }

  // A rank that never had to wait left nothing in the store; but its calls up to agreed_ were ours.
  std::string whereabouts(int rank) const override {
    const std::optional<Place> place = place_of(rank);
    std::string text = "rank " + std::to_string(rank);
    if (place && place->number > agreed_) return text + ", which is in " + numbered(place->record);
    if (agreed_ == 0) return text + ", which has called no collective yet";
    return text + ", whose last collective was #" + std::to_string(last_agreed_sequence());
  }

  bool lost(int) const override { return false; }

  void fail(Failure kind, int lost_rank, const std::string& text) noexcept override {
    try {
      store_->compare_set("failure", "",
                          std::to_string(static_cast<uint32_t>(kind)) + " " +
                              std::to_string(rank_) + " " + std::to_string(lost_rank) + " " + text);
    } catch (const std::exception&) {  // nobody can be told
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Shown {
    Place place;
    Clock::time_point since;
    std::array<int64_t, 2> sent{};
    std::unique_ptr<Request> request;
  };

  static std::string key(const char* what, int rank) {
    return std::string(what) + "/" + std::to_string(rank);
  }

  uint64_t last_agreed_sequence() const {
    // The communicator's numbers may run ahead of the channel's by what was agreed elsewhere.
    return last_.record.sequence - (last_.number - agreed_);
  }

  std::optional<Place> place_of(int rank) const {
    try {
      const auto text = store_->try_get(key("at", rank));
      if (!text) return std::nullopt;
      const size_t colon = text->find(':');
      if (colon == std::string::npos) return std::nullopt;
      const auto number = parse_int(text->substr(0, colon), 1);
      const auto record = from_bytes(text->substr(colon + 1));
      if (!number || !record) return std::nullopt;
      return Place{static_cast<uint64_t>(*number), *record};
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  void throw_reported() {
    const auto text = store_->try_get("failure");
    if (!text) return;
    std::array<int64_t, 3> numbers{};  // kind, rank, lost rank
    size_t at = 0;
    for (int64_t& number : numbers) {
      const size_t space = text->find(' ', at);
      if (space == std::string::npos) return;
      number = parse_int(text->substr(at, space - at)).value_or(-1);
      at = space + 1;
    }
    const std::string reason = text->substr(at);
    throw_failure(static_cast<Failure>(numbers[0]),
                  static_cast<int>(numbers[2] >= 0 ? numbers[2] : numbers[1]),
                  numbers[1] == rank_
                      ? reason
                      : "rank " + std::to_string(numbers[1]) + " reported: " + reason);
  }

  // All ranks come here, having seen the same two maxima.
  [[noreturn]] void report_mismatch(const Place& place) {
    const Deadline deadline = Deadline::after(kTwinTalk);
    std::vector<CallRecord> records(static_cast<size_t>(size_));
    store_->set(key("call", rank_), to_bytes(place.record));
    for (int r = 0; r < size_; ++r) {
      try {
        records[static_cast<size_t>(r)] =
            from_bytes(store_->get(key("call", r), deadline)).value_or(CallRecord());
      } catch (const Timeout&) {  // shows as #0
      }
    }
    const std::string text = mismatch_text(records);
    fail(Failure::kMismatch, -1, text);
    throw Mismatch(text);
  }

  // In order, not yet agreed. Outlives twin_, which may still write into what was sent.
  std::deque<std::unique_ptr<Shown>> shown_;
  std::unique_ptr<Backend> twin_;
  std::shared_ptr<Store> store_;
  int rank_;
  int size_;
  Place last_;  // shown
  uint64_t agreed_ = 0;
  uint64_t said_ = 0;  // the number that this rank left in the store
  Clock::time_point looked_;
};

}  // namespace

std::unique_ptr<SideChannel> make_twin_channel(std::unique_ptr<Backend> twin,
                                               std::shared_ptr<Store> store, int rank, int size) {
  return std::make_unique<TwinChannel>(std::move(twin), std::move(store), rank, size);
}

}  // namespace lockstep::side_channel
