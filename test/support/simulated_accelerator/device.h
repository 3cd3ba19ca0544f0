// Streams and memory of the simulated devices. Private to the simulation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "clock.h"

namespace simulated {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

// --- streams ---------------------------------------------------------------------------------------------------------
/// What a stream has reached; waited for by streams and by the host.
struct Marker;
using MarkerPtr = std::shared_ptr<Marker>;

int currentDevice();
void setCurrentDevice(int device);
/// Of this thread.
int currentStream(int device);
int exchangeStream(int device, int stream);
int poolStream(int device);
c10::Stream streamOf(int device, int stream);

/// Enqueues; the accesses are judged now. What a job throws is thrown by the next host wait of its device.
void enqueue(int device, int stream, const char* name, const std::vector<Access>& accesses, std::function<void()> job);
MarkerPtr record(int device, int stream);
void block(const MarkerPtr& marker, int device, int stream);
bool isReached(const MarkerPtr& marker);
void waitFor(const MarkerPtr& marker);
void waitForStream(int device, int stream);
void waitForDevice(int device, bool throws = true);
bool isIdle(int device, int stream);

// --- memory ----------------------------------------------------------------------------------------------------------
/// Where kernels find what a tensor's address names; null for memory of others.
void* twin(const void* address);
int deviceOf(const void* address);
bool isPinned(const void* address);
c10::Allocator* pinnedAllocator();
/// The stream will use the memory: it is reused only after what is enqueued there when it is freed.
void recordStream(const void* address, int device, int stream);

}  // namespace simulated
