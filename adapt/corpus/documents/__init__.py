"""Reads the text of documents: HTML, PDF, DOCX, EPUB, Markdown, reStructuredText, LaTeX and web archives.

Documents are not trusted. They are parsed in a separate process with limits on time and memory, so a document that
crashes or blocks a library is counted as unreadable, and the job continues.

- `document_kinds`: defines the kinds of documents, the packages and limits of each, the reasons why a document has no
  text, and the marks before pages and headings.
- `pdf_pages`: reads the pages of PDF files, without headers and footers.
- `zipped_documents`: reads DOCX and EPUB files.
- `markup_documents`: reads HTML, Markdown, reStructuredText and LaTeX.
- `document_reader`: the program that parses documents.
- `document_files`: reads the documents of a file or web archive with this program, and restarts the program when a
  document has crashed or blocked it.
"""
