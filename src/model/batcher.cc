#include "model/batcher.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include "base/error.h"
#include "compile/tensors.h"

namespace abele::host {
namespace {

/// How many rows each of the tensors has. Throws E0708.
int64_t rowsOf(const Batcher::Tensors& tensors) {
  ABELE_REQUIRE(!tensors.empty(), E0708, {.what = "a request without tensors", .remedy = "pass rows for the model"});
  for (size_t i = 0; i < tensors.size(); ++i) {
    requireMemory(tensors[i], cat("tensor ", i, " of a request"));
    const bool has_rows = tensors[i].dim() > 0 && tensors[i].size(0) > 0;
    ABELE_REQUIRE(has_rows && tensors[i].size(0) == tensors[0].size(0), E0708,
                  {.what = cat("tensor ", i, " of a request has no rows, or another number of them than the first"),
                   .found = typeOf(tensors[i]).str(),
                   .expected = has_rows ? cat(tensors[0].size(0), " rows") : "one row or more",
                   .remedy = "pass a row for each sample, also for a single one: x.unsqueeze(0)"});
  }
  return tensors[0].size(0);
}

/// Requests with the same one can be in one batch.
std::string keyOf(const std::string& form, const Batcher::Tensors& tensors) {
  std::string key = form;
  for (const at::Tensor& tensor : tensors) {
    std::vector<int64_t> sizes = tensor.sizes().vec();
    sizes[0] = 1;
    key += cat(" ", contiguousType(static_cast<DType>(tensor.scalar_type()), sizes).str());
  }
  return key;
}

double quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto at = static_cast<size_t>(share * static_cast<double>(sorted.size()));
  return sorted[std::min(at, sorted.size() - 1)];
}

}  // namespace

Batcher::Batcher(Run run, Settings settings) : run_(std::move(run)), settings_(settings) {
  ABELE_REQUIRE(settings.batch_rows >= 1 && settings.longest_wait.count() >= 0 && settings.most_waiting_rows >= 1,
                E0702,
                {.what = "a server whose batches or queue have no rows, or that waits for a negative time",
                 .found = cat("batches of ", settings.batch_rows, ", a queue of ", settings.most_waiting_rows, ", ",
                              settings.longest_wait.count(), " ns"),
                 .expected = "1 or more, 1 or more, 0 or more"});
  thread_ = std::thread([this] { work(); });
}

Batcher::~Batcher() { stop(); }

std::optional<std::future<Batcher::Tensors>> Batcher::submit(const std::string& form, const Tensors& rows, bool wait) {
  const Clock::time_point now = Clock::now();
  const int64_t count = rowsOf(rows);
  const auto answer = std::make_shared<Answer>();
  answer->submitted = now;
  answer->rows = count;
  answer->left = static_cast<size_t>((count + settings_.batch_rows - 1) / settings_.batch_rows);
  answer->parts.resize(answer->left);
  const std::string key = keyOf(form, rows);
  std::unique_lock lock(mu_);
  const auto has_room = [&] {
    return stopping_ || waiting_rows_ == 0 || waiting_rows_ + count <= settings_.most_waiting_rows;
  };
  if (!wait && !has_room()) return {};
  room_.wait(lock, has_room);
  ABELE_REQUIRE(!stopping_, E0705, {.what = "the server was stopped", .remedy = "make another one"});
  requireKind(key);
  Bucket& bucket = buckets_[key];
  bucket.kind = {.key = key, .form = form};
  for (int64_t begin = 0; begin < count; begin += settings_.batch_rows) {
    const int64_t size = std::min(settings_.batch_rows, count - begin);
    Piece piece{.answer = answer, .index = static_cast<size_t>(begin / settings_.batch_rows), .rows = size};
    for (const at::Tensor& tensor : rows) piece.tensors.push_back(tensor.detach().narrow(0, begin, size));
    bucket.pieces.push_back(std::move(piece));
  }
  bucket.rows += count;
  waiting_rows_ += count;
  std::future<Tensors> future = answer->promise.get_future();
  lock.unlock();
  arrived_.notify_one();
  return future;
}

void Batcher::stop() {
  const std::lock_guard joining(joining_);
  {
    const std::lock_guard lock(mu_);
    stopping_ = true;
  }
  arrived_.notify_all();
  room_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Batcher::Statistics Batcher::statistics() const {
  std::vector<double> sorted;
  Statistics found;
  {
    const std::lock_guard lock(mu_);
    found = counts_;
    found.waiting_rows = waiting_rows_;
    sorted = latencies_;
  }
  std::ranges::sort(sorted);
  found.p50_s = quantile(sorted, 0.5);
  found.p90_s = quantile(sorted, 0.9);
  found.p99_s = quantile(sorted, 0.99);
  found.longest_s = sorted.empty() ? 0 : sorted.back();
  return found;
}

void Batcher::requireKind(const std::string& key) const {
  ABELE_REQUIRE(kinds_.contains(key) || static_cast<int64_t>(kinds_.size()) < settings_.most_kinds, E0704,
                {.what = "a request of a kind that the server has no program for",
                 .found = key,
                 .expected = cat("one of the ", kinds_.size(), " kinds that were there before"),
                 .remedy = "pad requests to few shapes, or allow more of them (most_shapes)"});
}

// --- the batcher's thread --------------------------------------------------------------------------------------------
void Batcher::work() {
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mu_);
  while (true) {
    Bucket* const bucket = due(Clock::now());
    if (bucket) {
      const Kind kind = bucket->kind;
      Pieces pieces = takeBatch(*bucket);
      std::erase_if(buckets_, [](const auto& entry) { return entry.second.pieces.empty(); });
      lock.unlock();
      room_.notify_all();
      answer(kind, std::move(pieces));
      lock.lock();
    } else if (!buckets_.empty()) {
      arrived_.wait_until(lock, firstDeadline());
    } else if (stopping_) {
      return;
    } else {
      arrived_.wait(lock);
    }
  }
}

Batcher::Clock::time_point Batcher::firstDeadline() const {
  Clock::time_point first = Clock::time_point::max();
  for (const auto& [key, bucket] : buckets_)
    first = std::min(first, bucket.pieces.front().answer->submitted + settings_.longest_wait);
  return first;
}

Batcher::Bucket* Batcher::due(Clock::time_point now) {
  Bucket *oldest_full = nullptr, *oldest_late = nullptr;
  const auto choose = [](Bucket*& chosen, Bucket& bucket) {
    const auto since = [](const Bucket& b) { return b.pieces.front().answer->submitted; };
    if (!chosen || since(bucket) < since(*chosen)) chosen = &bucket;
  };
  for (auto& [key, bucket] : buckets_) {
    if (bucket.rows >= settings_.batch_rows) choose(oldest_full, bucket);
    if (stopping_ || now >= bucket.pieces.front().answer->submitted + settings_.longest_wait)
      choose(oldest_late, bucket);
  }
  // A kind of request that fills all batches must not keep those of other kinds for ever.
  return oldest_late ? oldest_late : oldest_full;
}

Batcher::Pieces Batcher::takeBatch(Bucket& bucket) {
  Pieces taken;
  int64_t rows = 0;
  while (!bucket.pieces.empty() && rows + bucket.pieces.front().rows <= settings_.batch_rows) {
    rows += bucket.pieces.front().rows;
    taken.push_back(std::move(bucket.pieces.front()));
    bucket.pieces.pop_front();
  }
  bucket.rows -= rows;
  waiting_rows_ -= rows;
  return taken;
}

void Batcher::answer(const Kind& kind, Pieces pieces) {
  std::vector<Tensors> results;
  std::exception_ptr error;
  try {
    results = call(kind, pieces);
  } catch (...) {
    error = std::current_exception();
  }
  if (error && pieces.size() > 1) {
    // One of them is wrong, or several are: each half alone, so that the others get their answers.
    const auto middle = pieces.begin() + static_cast<ptrdiff_t>(pieces.size() / 2);
    answer(kind, Pieces(std::make_move_iterator(pieces.begin()), std::make_move_iterator(middle)));
    answer(kind, Pieces(std::make_move_iterator(middle), std::make_move_iterator(pieces.end())));
    return;
  }
  for (size_t i = 0; i < pieces.size(); ++i) give(pieces[i], error ? Tensors() : std::move(results[i]), error);
}

/// Results by piece.
std::vector<Batcher::Tensors> Batcher::call(const Kind& kind, const Pieces& pieces) {
  int64_t rows = 0;
  for (const Piece& piece : pieces) rows += piece.rows;
  const int64_t missing = settings_.batch_rows - rows;
  Tensors batch;
  for (size_t t = 0; t < pieces[0].tensors.size(); ++t) {
    Tensors parts;
    for (const Piece& piece : pieces) parts.push_back(piece.tensors[t]);
    if (missing > 0) {  // copies of a row that is there, which can do no harm that it does not do alone
      at::Tensor last = parts.back().narrow(0, pieces.back().rows - 1, 1);
      std::vector<int64_t> sizes = last.sizes().vec();
      sizes[0] = missing;
      parts.push_back(last.expand(sizes));
    }
    batch.push_back(parts.size() == 1 ? parts[0].contiguous() : at::cat(parts).contiguous());
  }
  const Tensors results = run_(kind.form, batch);
  {
    const std::lock_guard lock(mu_);
    kinds_.insert(kind.key);  // before anybody is answered, who may ask again at once
    ++counts_.batches;
    counts_.filling_rows += missing;
  }
  std::vector<Tensors> by_piece(pieces.size());
  for (size_t r = 0; r < results.size(); ++r) {
    const bool has_rows = results[r].dim() > 0 && results[r].size(0) % settings_.batch_rows == 0;
    ABELE_REQUIRE(has_rows, E0708,
                  {.what = cat("result ", r, " of the model has no row of its own for each row of the batch"),
                   .found = typeOf(results[r]).str(),
                   .expected = cat("a multiple of ", settings_.batch_rows, " rows"),
                   .remedy = "return results with a row for each sample, by OutputMode All"});
    const int64_t per_row = results[r].size(0) / settings_.batch_rows;
    int64_t begin = 0;
    for (size_t i = 0; i < pieces.size(); begin += pieces[i++].rows)
      by_piece[i].push_back(results[r].narrow(0, begin * per_row, pieces[i].rows * per_row).clone());
  }
  return by_piece;
}

void Batcher::give(Piece& piece, Tensors results, const std::exception_ptr& error) {
  Answer& answer = *piece.answer;
  answer.parts[piece.index] = std::move(results);
  if (error) answer.error = error;
  if (--answer.left > 0) return;
  Tensors whole = std::move(answer.parts[0]);
  if (answer.parts.size() > 1 && !answer.error)
    for (size_t r = 0; r < whole.size(); ++r) {
      Tensors parts{whole[r]};
      for (size_t i = 1; i < answer.parts.size(); ++i) parts.push_back(answer.parts[i][r]);
      whole[r] = at::cat(parts);
    }
  {
    const std::lock_guard lock(mu_);
    const double latency = std::chrono::duration<double>(Clock::now() - answer.submitted).count();
    ++counts_.requests;
    counts_.failed += answer.error ? 1 : 0;
    counts_.rows += answer.rows;
    if (latencies_.size() < kKept)
      latencies_.push_back(latency);
    else
      latencies_[next_latency_++ % kKept] = latency;
  }
  answer.error ? answer.promise.set_exception(answer.error) : answer.promise.set_value(std::move(whole));
}

}  // namespace abele::host
