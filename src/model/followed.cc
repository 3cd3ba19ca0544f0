// Models of modules that share submodules: finds the newest weights and copies them from the model that has them.
#include <algorithm>
#include <optional>
#include <utility>

#include "model/model.h"
#include "session/written_state.h"

namespace abele::model {

void Model::follow() {
  const uint64_t generation = source_->generation();
  if (generation_ == generation) return;
  if (generation_ && source_->lastEnd() > *generation_) uploaded_version_ = -1;  // a training began and ended meanwhile
  generation_ = generation;
  std::erase_if(followed_, [](const Followed& followed) {
    return followed.model.expired() && followed.uploaded_version == followed.sharing->host_version;
  });
  for (const std::shared_ptr<Model>& model : source_->trainers()) {
    if (model.get() == this || model->sharing_ == sharing_) continue;
    const auto known = std::ranges::find(followed_, model->sharing_, &Followed::sharing);
    if (known == followed_.end())
      followed_.push_back({model, model->sharing_});
    else
      known->model = model;  // the module's previous model may have ended
  }
}

void Model::pullFromTrainers() {
  if (sharing_->trainer && sharing_->trainer != this) sharing_->trainer->pullIfStale();
  follow();
  for (const Followed& followed : followed_)
    if (const std::shared_ptr<Model> model = followed.model.lock(); model && model->isStale()) {
      const Turns::Turn turn = turnOf(*model->sharing_);
      model->pullIfStale();
    }
}

bool Model::sharesWithTrainings() const {
  return rules_.training && rules_.policy.shares_weights &&
         std::ranges::any_of(followed_, [](const Followed& followed) { return !followed.model.expired(); });
}

void Model::followTrainings() {
  if (!rules_.policy.shares_weights) return;
  follow();
  std::vector<Turns::Turn> turns;
  std::vector<std::shared_ptr<Model>> others;
  for (const Followed& followed : followed_) {
    if (!followed.sharing->turns.isMine()) {
      // Another thread runs a step that may look at this model too. Waiting could deadlock, so neither waits.
      std::optional<Turns::Turn> turn = followed.sharing->turns.takeIfFree();
      if (!turn)
        return warnOnce(
            "another thread is using a model that trains some of the same weights: this step goes on with those that "
            "it has, which may be older; call models that share submodules one after the other, or from one thread");
      turns.push_back(*std::move(turn));
    }
    if (std::shared_ptr<Model> model = followed.model.lock()) others.push_back(std::move(model));
  }
  for (const std::shared_ptr<Model>& model : others) model->pullIfStale();
  if (!isBehind()) {
    if (!stale_) session::uploadEdited(*program_->session);
    return;
  }
  pullIfStale();
  uploadWeights();
}

bool Model::isBehind() const {
  return uploaded_version_ != sharing_->host_version || std::ranges::any_of(followed_, [](const Followed& followed) {
           return followed.uploaded_version != followed.sharing->host_version;
         });
}

void Model::noteUpload() {
  uploaded_version_ = sharing_->host_version;
  for (Followed& followed : followed_) followed.uploaded_version = followed.sharing->host_version;
}

std::vector<Turns::Turn> Model::turnsOfFollowed() const {
  std::vector<Turns::Turn> turns;
  for (const Followed& followed : followed_) turns.push_back(turnOf(*followed.sharing));
  return turns;
}

}  // namespace abele::model
