/* gguf_folder.c - a folder in place of a file: the one model that lies in it. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "gguf_parts.h"
#include "gguf_split.h"

#define SUFFIX ".gguf"

/* *.gguf files of a folder, by name. */
struct listing {
    char **names;
    size_t count, room;
    uint64_t others;      /* entries that are not */
    struct glm52_shown other; /* one of them */
};

static int compare_texts(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static bool is_gguf_name(const char *name) {
    const size_t length = strlen(name), suffix = strlen(SUFFIX);
    return name[0] != '.' && length > suffix && strcasecmp(name + length - suffix, SUFFIX) == 0;
}

static char *join(const char *folder, const char *name) {
    const size_t folder_bytes = strlen(folder), room = folder_bytes + strlen(name) + 2;
    char *path = malloc(room);
    if (path == NULL) return NULL;
    const bool ends = folder_bytes > 0 && folder[folder_bytes - 1] == '/';
    snprintf(path, room, "%s%s%s", folder, ends ? "" : "/", name);
    return path;
}

static glm52_status add_name(struct listing *listing, const char *folder, const char *name) {
    if (listing->count == GLM52_GGUF_FOLDER_FILES_MAX) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: more than %u *.gguf files; name the one to open",
                          glm52_show_path(folder), GLM52_GGUF_FOLDER_FILES_MAX);
    }
    if (listing->count == listing->room) {
        const size_t room = listing->room > 0 ? 2 * listing->room : 16;
        char **names = realloc(listing->names, room * sizeof(*names));
        if (names == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for %zu file names", room);
        listing->names = names;
        listing->room = room;
    }
    char *copy = strdup(name);
    if (copy == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for a file name");
    listing->names[listing->count++] = copy;
    return GLM52_OK;
}

static glm52_status list_folder(const char *folder, struct listing *listing) {
    DIR *stream = opendir(folder);
    if (stream == NULL) return glm52_fail(GLM52_ERR_IO, "%s: %s", glm52_show_path(folder), strerror(errno));
    glm52_status status = GLM52_OK;
    for (struct dirent *entry; status == GLM52_OK && (entry = readdir(stream)) != NULL;) {
        if (is_gguf_name(entry->d_name)) {
            status = add_name(listing, folder, entry->d_name);
        } else if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            if (listing->others == 0 || strcmp(entry->d_name, listing->other.text) < 0) {
                glm52_show(&listing->other, entry->d_name, strlen(entry->d_name));
            }
            listing->others++;
        }
    }
    closedir(stream);
    if (status == GLM52_OK && listing->count > 1) {
        qsort(listing->names, listing->count, sizeof(*listing->names), compare_texts);
    }
    return status;
}

/* Whether two files are shards of one split model. Sorted, these are neighbours. */
static bool same_model(const char *a, const char *b) {
    struct glm52_shard_name x, y;
    return glm52_shard_name_read(a, &x) && glm52_shard_name_read(b, &y) && x.count == y.count &&
           x.prefix_bytes == y.prefix_bytes && strncmp(a, b, x.prefix_bytes) == 0;
}

static glm52_status fail_several(const char *folder, const struct listing *listing, size_t models) {
    char list[640] = "";
    size_t used = 0, shown = 0;
    for (size_t i = 0; i < listing->count; i++) {
        if (i > 0 && same_model(listing->names[i - 1], listing->names[i])) continue;
        struct glm52_shown name;
        glm52_show(&name, listing->names[i], strlen(listing->names[i]));
        if (used + strlen(name.text) + 2 >= sizeof(list)) break;
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", shown > 0 ? ", " : "", name.text);
        shown++;
    }
    return glm52_fail(GLM52_ERR_MODEL, "%s: this folder holds %zu models; name the one to open: %s%s",
                      glm52_show_path(folder), models, list, shown < models ? ", ..." : "");
}

static glm52_status choose(const char *folder, const struct listing *listing, char **chosen_out) {
    size_t models = 0;
    for (size_t i = 0; i < listing->count; i++) {
        if (i == 0 || !same_model(listing->names[i - 1], listing->names[i])) models++;
    }
    if (models > 1) return fail_several(folder, listing, models);
    if (models == 1) {
        *chosen_out = join(folder, listing->names[0]);
        return *chosen_out != NULL ? GLM52_OK : glm52_fail(GLM52_ERR_MEMORY, "no memory for a path");
    }
    if (listing->others == 0) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: this folder is empty; a model is a *.gguf file",
                          glm52_show_path(folder));
    }
    return glm52_fail(GLM52_ERR_MODEL,
                      "%s: this folder holds no *.gguf file (entries: %llu, the first is %s)",
                      glm52_show_path(folder), (unsigned long long)listing->others, listing->other.text);
}

glm52_status glm52_split_choose(const char *path, char **chosen_out) {
    struct stat about;
    if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode)) {
        *chosen_out = strdup(path);  /* opening it will say what is wrong with it */
        return *chosen_out != NULL ? GLM52_OK : glm52_fail(GLM52_ERR_MEMORY, "no memory for a path");
    }
    struct listing listing = {0};
    glm52_status status = list_folder(path, &listing);
    if (status == GLM52_OK) status = choose(path, &listing, chosen_out);
    for (size_t i = 0; i < listing.count; i++) free(listing.names[i]);
    free(listing.names);
    return status;
}
