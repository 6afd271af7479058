#include "lockstep/store/store_service.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

std::vector<StoreService::Reply> StoreService::handle(ClientId client,
                                                      const StoreRequest& request) {
  std::vector<Reply> replies;
  switch (request.op) {
    case StoreOp::kGet:
    case StoreOp::kWait:
      park_or_reply({client, request}, replies);
      break;
    case StoreOp::kCancel:
      cancel(client, request.id, replies);
      break;
    default:
      // The client's own answer goes first; woken waiters follow.
      replies.push_back({client, {}});
      StoreResponse response = apply(request, replies);
      replies.front().response = std::move(response);
  }
  return replies;
}

StoreResponse StoreService::apply(const StoreRequest& request, std::vector<Reply>& replies) {
  StoreResponse response;
  response.id = request.id;
  const std::string& key = request.keys.front();
  switch (request.op) {
    case StoreOp::kSet:
      values_.set(key, request.value);
      wake(key, replies);
      break;
    case StoreOp::kTryGet:
      if (const std::string* value = values_.find(key)) {
        response.value = *value;
      } else {
        response.status = StoreStatus::kAbsent;
      }
      break;
    case StoreOp::kAdd:
      try {
        response.number = values_.sum(key, request.delta);
        values_.set(key, std::to_string(response.number));
        wake(key, replies);
      } catch (const StoreError& error) {
        response.status = StoreStatus::kError;
        response.value = error.what();
      }
      break;
    case StoreOp::kCompareSet:
      if (values_.matches(key, request.expected)) {
        response.value = request.value;
        values_.set(key, request.value);
        wake(key, replies);
      } else if (const std::string* value = values_.find(key)) {
        response.value = *value;
      }
      break;
    case StoreOp::kRemove:
      response.number = values_.remove(key) ? 1 : 0;
      break;
    case StoreOp::kGet:
    case StoreOp::kWait:
    case StoreOp::kCancel:
      break;  // handle() has answered them
  }
  return response;
}

void StoreService::park_or_reply(Parked parked, std::vector<Reply>& replies) {
  if (const std::string* missing = values_.first_missing(parked.request.keys)) {
    parked_.emplace(*missing, std::move(parked));
    return;
  }
  StoreResponse response;
  response.id = parked.request.id;
  if (parked.request.op == StoreOp::kGet)
    response.value = *values_.find(parked.request.keys.front());
  replies.push_back({parked.client, std::move(response)});
}

void StoreService::wake(const std::string& key, std::vector<Reply>& replies) {
  std::vector<Parked> woken;
  const auto [first, last] = parked_.equal_range(key);
  for (auto it = first; it != last; ++it) woken.push_back(std::move(it->second));
  parked_.erase(first, last);
  for (Parked& parked : woken) park_or_reply(std::move(parked), replies);
}

void StoreService::cancel(ClientId client, uint64_t id, std::vector<Reply>& replies) {
  const auto it = std::find_if(parked_.begin(), parked_.end(), [&](const auto& entry) {
    return entry.second.client == client && entry.second.request.id == id;
  });
  if (it == parked_.end()) return;  // its answer is already on its way
  StoreResponse response;
  response.id = id;
  response.status = StoreStatus::kCancelled;
  response.value = it->first;
  parked_.erase(it);
  replies.push_back({client, std::move(response)});
}

void StoreService::drop(ClientId client) {
  std::erase_if(parked_, [&](const auto& entry) { return entry.second.client == client; });
}

}  // namespace lockstep::inline v0
